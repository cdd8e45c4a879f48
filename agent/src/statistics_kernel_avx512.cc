// Kernel table for AVX-512 F, BW, DQ and VL.
#include "agent/src/statistics_kernel.h"

#define NEURALDBG_VECTOR_BYTES 64
#include "agent/src/statistics_kernel.inc"

namespace neuraldbg {

// Whether the processor runs it is asked by statistics_kernel.cc, which is compiled for any processor.
const KernelTable& Avx512KernelsUnchecked() noexcept {
  static constexpr KernelTable kTable = MakeKernelTable("avx512");
  return kTable;
}

}  // namespace neuraldbg
