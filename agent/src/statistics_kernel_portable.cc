// Kernel table for what every processor of the architecture runs (SSE2, NEON).
#include "agent/src/statistics_kernel.h"

#define NEURALDBG_VECTOR_BYTES 16
#include "agent/src/statistics_kernel.inc"

namespace neuraldbg {

const KernelTable& PortableKernels() noexcept {
  static constexpr KernelTable kTable = MakeKernelTable("portable");
  return kTable;
}

}  // namespace neuraldbg
