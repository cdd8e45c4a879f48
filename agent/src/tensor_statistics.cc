#include "agent/src/tensor_statistics.h"

#include <limits>
#include <memory>
#include <new>

namespace neuraldbg {
namespace {

constexpr std::size_t kGatherBytes = 16384;         // half of the smallest L1 data cache in use
constexpr std::int64_t kDirectRun = 512;            // elements; shorter runs are gathered first, to fill vectors
constexpr std::size_t kInterleavedElements = 8192;  // elements between two looks at which units are still silent

// Where the derivative of the function has fallen below about 0.02 (tanh: 1 - 0.99², sigmoid: 0.99 * 0.01, softmax
// likewise), a fiftieth of its maximum or less (docs/statistics.md).
const SaturationBounds* BoundsOf(Saturation saturation) noexcept {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr SaturationBounds kTanh{-0.99, 0.99}, kSigmoid{0.01, 0.99}, kSoftmax{-kInfinity, 0.99};
  switch (saturation) {
    case Saturation::kTanh:
      return &kTanh;
    case Saturation::kSigmoid:
      return &kSigmoid;
    case Saturation::kSoftmax:
      return &kSoftmax;
    default:
      return nullptr;
  }
}

const char* Offset(const void* data, std::int64_t elements, std::size_t element_bytes) noexcept {
  return static_cast<const char*>(data) + elements * static_cast<std::int64_t>(element_bytes);
}

void AccumulateWalk(const void* data, const MemoryWalk& walk, std::size_t element_bytes, AccumulateFunction accumulate,
                    const SaturationBounds* bounds, Accumulator& total) noexcept {
  const std::int64_t run = walk.inner_size();
  if (walk.inner_stride() == 1 && (run >= kDirectRun || walk.dimensions <= 1)) {
    ForEachRun(walk, [&](std::int64_t offset) {
      accumulate(Offset(data, offset, element_bytes), static_cast<std::size_t>(run), bounds, total);
      return true;
    });
    return;
  }
  alignas(64) char gathered[kGatherBytes];
  const std::size_t capacity = kGatherBytes / element_bytes;
  std::size_t filled = 0;
  ForEachRun(walk, [&](std::int64_t offset) {
    const char* source = Offset(data, offset, element_bytes);
    for (std::int64_t left = run; left > 0;) {
      const std::size_t room = capacity - filled;
      const std::size_t count = static_cast<std::size_t>(left) < room ? static_cast<std::size_t>(left) : room;
      GatherRun(source, walk.inner_stride(), count, element_bytes, gathered + filled * element_bytes);
      source = Offset(source, static_cast<std::int64_t>(count) * walk.inner_stride(), element_bytes);
      left -= static_cast<std::int64_t>(count);
      filled += count;
      if (filled == capacity) {
        accumulate(gathered, filled, bounds, total);
        filled = 0;
      }
    }
    return true;
  });
  if (filled != 0) accumulate(gathered, filled, bounds, total);
}

// Flags of the units of one call; grows to at most kMaxUnits and is reused, so that a hook allocates once per thread.
std::uint32_t* UnitFlags(std::size_t units) noexcept {
  thread_local std::unique_ptr<std::uint32_t[]> flags;
  thread_local std::size_t capacity = 0;
  if (units > capacity) {
    flags.reset(new (std::nothrow) std::uint32_t[units]);
    capacity = flags == nullptr ? 0 : units;
    if (flags == nullptr) return nullptr;
  }
  for (std::size_t unit = 0; unit < units; ++unit) flags[unit] = 0;
  return flags.get();
}

std::uint32_t CountSilent(const std::uint32_t* flags, std::size_t units) noexcept {
  std::uint32_t silent = 0;
  for (std::size_t unit = 0; unit < units; ++unit) silent += flags[unit] == 0 ? 1u : 0u;
  return silent;
}

// Units vary fastest in memory: marks them group by group while the group is in the cache, and stops looking as soon
// as every unit has spoken, which in a healthy layer is after a few rows.
std::uint32_t AccumulateInterleaved(const void* data, std::size_t rows, std::size_t units, std::size_t element_bytes,
                                    const ElementKernels& kernels, const SaturationBounds* bounds, bool positive_only,
                                    std::uint32_t* flags, Accumulator& total) noexcept {
  const std::size_t group_rows = units * 8 > kInterleavedElements ? 8 : kInterleavedElements / units;
  std::uint32_t silent = static_cast<std::uint32_t>(units);
  const char* next = static_cast<const char*>(data);
  for (std::size_t row = 0; row < rows;) {
    const bool watching = silent != 0;
    const std::size_t count = watching && rows - row > group_rows ? group_rows : rows - row;
    kernels.accumulate(next, count * units, bounds, total);
    if (watching) {
      kernels.mark_alive(next, count, units, positive_only, flags);
      silent = CountSilent(flags, units);
    }
    next += count * units * element_bytes;
    row += count;
  }
  return silent;
}

// One element's liveness, as mark_alive in statistics_kernel.h defines it.
bool IsAlive(const char* element, DType dtype, bool positive_only) noexcept {
  std::uint64_t magnitude_mask = 0, infinity = 0, pattern = 0, sign = 0;
  switch (dtype) {
    case DType::kFloat32: {
      std::uint32_t value;
      __builtin_memcpy(&value, element, sizeof value);
      pattern = value, magnitude_mask = 0x7fffffff, infinity = 0x7f800000;
      break;
    }
    case DType::kFloat64:
      __builtin_memcpy(&pattern, element, sizeof pattern);
      magnitude_mask = ~0ull >> 1, infinity = 0x7ff0000000000000ull;
      break;
    default: {
      std::uint16_t value;
      __builtin_memcpy(&value, element, sizeof value);
      pattern = value, magnitude_mask = 0x7fff, infinity = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
      break;
    }
  }
  sign = pattern & ~magnitude_mask;
  const std::uint64_t magnitude = pattern & magnitude_mask;
  if (magnitude == 0) return false;
  return !positive_only || sign == 0 || magnitude > infinity;
}

// Any other layout: look through each unit's own elements until one is live.
std::uint32_t CountDeadByUnit(const TensorView& view, int unit_dimension, bool positive_only) noexcept {
  const MemoryWalk walk = MakeMemoryWalk(view, unit_dimension);
  const std::size_t element_bytes = ElementBytes(view.dtype);
  const std::int64_t run = walk.inner_size();
  std::uint32_t dead = 0;
  for (std::int64_t unit = 0; unit < view.sizes[unit_dimension]; ++unit) {
    const char* first = Offset(view.data, unit * view.strides[unit_dimension], element_bytes);
    const bool silent = ForEachRun(walk, [&](std::int64_t offset) {
      for (std::int64_t i = 0; i < run; ++i) {
        if (IsAlive(Offset(first, offset + i * walk.inner_stride(), element_bytes), view.dtype, positive_only))
          return false;
      }
      return true;
    });
    dead += silent ? 1 : 0;
  }
  return dead;
}

int UnitDimension(const TensorView& view, UnitMode mode) noexcept {
  if (mode == UnitMode::kLastDimension && view.dimensions >= 1) return view.dimensions - 1;
  if (mode == UnitMode::kDimension1 && view.dimensions >= 2) return 1;
  return -1;
}

}  // namespace

bool IsFloating(DType dtype) noexcept {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

bool ComputeStatistics(const TensorView& view, const StatisticsOptions& options,
                       TensorStatistics& statistics) noexcept {
  return ComputeStatistics(view, options, BestKernels(), statistics);
}

bool ComputeStatistics(const TensorView& view, const StatisticsOptions& options, const KernelTable& table,
                       TensorStatistics& statistics) noexcept {
  const ElementKernels kernels = KernelsFor(table, view.dtype);
  if (kernels.accumulate == nullptr || view.dimensions > kMaxTensorDimensions) return false;
  TensorStatistics result;
  result.is_floating = IsFloating(view.dtype);
  const SaturationBounds* bounds = result.is_floating ? BoundsOf(options.saturation) : nullptr;
  result.has_saturation = bounds != nullptr;
  if (view.numel == 0) {
    statistics = result;
    return true;
  }
  const std::size_t element_bytes = ElementBytes(view.dtype);
  const MemoryWalk walk = MakeMemoryWalk(view);
  const int unit_dimension = result.is_floating ? UnitDimension(view, options.unit_mode) : -1;
  const bool positive_only = options.dead_rule == DeadRule::kNeverPositive;
  const auto units = unit_dimension < 0 ? 0 : static_cast<std::uint64_t>(view.sizes[unit_dimension]);
  if (units != 0 && units <= kMaxUnits) {
    result.has_units = true;
    result.units = static_cast<std::uint32_t>(units);
    std::uint32_t* flags = walk.dense() && units > 1 && view.strides[unit_dimension] == 1 ? UnitFlags(units) : nullptr;
    if (flags != nullptr) {
      result.dead_units = AccumulateInterleaved(view.data, view.numel / units, units, element_bytes, kernels, bounds,
                                                positive_only, flags, result.total);
      statistics = result;
      return true;
    }
    result.dead_units = CountDeadByUnit(view, unit_dimension, positive_only);
  }
  AccumulateWalk(view.data, walk, element_bytes, kernels.accumulate, bounds, result.total);
  statistics = result;
  return true;
}

}  // namespace neuraldbg
