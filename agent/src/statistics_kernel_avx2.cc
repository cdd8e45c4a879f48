// Kernel table for AVX2 with FMA.
#include "agent/src/statistics_kernel.h"

#define NEURALDBG_VECTOR_BYTES 32
#include "agent/src/statistics_kernel.inc"

namespace neuraldbg {

// Whether the processor runs it is asked by statistics_kernel.cc, which is compiled for any processor.
const KernelTable& Avx2KernelsUnchecked() noexcept {
  static constexpr KernelTable kTable = MakeKernelTable("avx2");
  return kTable;
}

}  // namespace neuraldbg
