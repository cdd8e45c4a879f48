// One pass over a tensor: what docs/statistics.md defines, whatever its shape, strides and element type.
//
// Pure except for a bounded scratch buffer per thread; never throws, reads only the tensor's own elements, and works on
// memory that other threads may be reading. Cost: one read of the memory (docs/statistics.md has the figures).
#pragma once

#include <cstdint>

#include "agent/src/statistics_kernel.h"
#include "agent/src/tensor_layout.h"

namespace neuraldbg {

// Along which dimension units (features, channels) are counted as dead. Values are those of capi.h.
enum class UnitMode : std::uint8_t { kNone = 0, kLastDimension = 1, kDimension1 = 2 };
enum class Saturation : std::uint8_t { kNone = 0, kTanh = 1, kSigmoid = 2, kSoftmax = 3 };
enum class DeadRule : std::uint8_t { kNeverNonzero = 0, kNeverPositive = 1 };

// More units than this are not counted (the flags of one call take four bytes a unit).
inline constexpr std::uint64_t kMaxUnits = 1u << 16;

struct StatisticsOptions {
  UnitMode unit_mode = UnitMode::kNone;
  Saturation saturation = Saturation::kNone;
  DeadRule dead_rule = DeadRule::kNeverNonzero;
};

struct TensorStatistics {
  Accumulator total;
  std::uint32_t units = 0;
  std::uint32_t dead_units = 0;
  bool has_units = false;
  bool has_saturation = false;
  bool is_floating = false;  // NaN, Inf and tiny counts mean something
};

// False, with `statistics` unchanged, when no kernel reads this element type or the view has too many dimensions.
bool ComputeStatistics(const TensorView& view, const StatisticsOptions& options, TensorStatistics& statistics) noexcept;
bool ComputeStatistics(const TensorView& view, const StatisticsOptions& options, const KernelTable& kernels,
                       TensorStatistics& statistics) noexcept;

bool IsFloating(DType dtype) noexcept;

}  // namespace neuraldbg
