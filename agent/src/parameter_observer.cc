#include "agent/src/parameter_observer.h"

#include <new>

namespace neuraldbg {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kCompareElements = 2048;  // value, copy and gradient of one stretch stay in the L1 cache

// Walks value and copies together, stretch by stretch; a value that is not dense is gathered first.
void Compare(const TensorView& value, const char* value_copy, const char* gradient_copy, const ElementKernels& kernels,
             ParameterStatistics& statistics) noexcept {
  const std::size_t element_bytes = ElementBytes(value.dtype);
  const MemoryWalk walk = MakeMemoryWalk(value);
  alignas(64) char gathered[kCompareElements * sizeof(double)];
  std::size_t done = 0;
  ForEachRun(walk, [&](std::int64_t offset) {
    const char* run = static_cast<const char*>(value.data) + offset * static_cast<std::int64_t>(element_bytes);
    for (auto left = static_cast<std::size_t>(walk.inner_size()); left > 0;) {
      const std::size_t count = left < kCompareElements ? left : kCompareElements;
      const char* stretch = run;
      if (walk.inner_stride() != 1) {
        GatherRun(run, walk.inner_stride(), count, element_bytes, gathered);
        stretch = gathered;
      }
      kernels.accumulate(stretch, count, nullptr, statistics.value);
      if (value_copy != nullptr) {
        const char* gradient = gradient_copy == nullptr ? nullptr : gradient_copy + done * element_bytes;
        kernels.update(stretch, value_copy + done * element_bytes, gradient, count, statistics.update);
      }
      done += count;
      left -= count;
      run += static_cast<std::int64_t>(count * element_bytes) * walk.inner_stride();
    }
    return true;
  });
}

bool SameSizes(const TensorView& a, const TensorView& b) noexcept {
  if (a.dimensions != b.dimensions) return false;
  for (int d = 0; d < a.dimensions; ++d) {
    if (a.sizes[d] != b.sizes[d]) return false;
  }
  return true;
}

}  // namespace

char* ParameterObserver::Allocate(std::size_t bytes) noexcept {
  const std::size_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (Chunk& chunk : chunks_) {
    if (chunk.capacity - chunk.used < wanted) continue;
    char* memory = chunk.memory.get() + chunk.used;
    chunk.used += wanted;
    return memory;
  }
  const std::size_t capacity = wanted > kChunkBytes ? wanted : kChunkBytes;
  if (chunk_bytes_ + capacity > kCopyBytesMax) return nullptr;
  Chunk chunk{std::unique_ptr<char[]>(new (std::nothrow) char[capacity]), capacity, wanted};
  if (chunk.memory == nullptr) return nullptr;
  char* memory = chunk.memory.get();
  chunks_.push_back(std::move(chunk));
  chunk_bytes_ += capacity;
  return memory;
}

bool ParameterObserver::Before(std::uint32_t site, const TensorView& value, const TensorView* gradient,
                               bool gradient_present) noexcept try {
  const ElementKernels kernels = KernelsFor(BestKernels(), value.dtype);
  if (kernels.update == nullptr || value.dimensions > kMaxTensorDimensions) return false;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  const std::size_t element_bytes = ElementBytes(value.dtype);
  Copy copy;
  copy.numel = value.numel;
  copy.dtype = value.dtype;
  copy.gradient_present = gradient_present;
  TensorStatistics gradient_statistics;
  if (gradient != nullptr && ComputeStatistics(*gradient, {}, gradient_statistics)) {
    copy.has_gradient = true;
    copy.gradient_total = gradient_statistics.total;
  }
  if (value.numel != 0) {
    if (char* memory = Allocate(value.numel * element_bytes); memory != nullptr) {
      CopyInOrderOf(value, value, element_bytes, memory);
      copy.value = memory;
    }
    const bool comparable =
        copy.has_gradient && copy.value != nullptr && gradient->dtype == value.dtype && SameSizes(value, *gradient);
    if (comparable) {
      if (char* memory = Allocate(value.numel * element_bytes); memory != nullptr) {
        CopyInOrderOf(value, *gradient, element_bytes, memory);
        copy.gradient = memory;
      }
    }
  }
  copies_[site] = copy;
  return true;
} catch (...) {
  return false;  // no memory for the bookkeeping: this parameter is not observed
}

bool ParameterObserver::After(std::uint32_t site, std::uint32_t optimizer_group, const TensorView& value,
                              Outcome& outcome) noexcept try {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  const auto found = copies_.find(site);
  if (found == copies_.end()) return false;
  const Copy copy = found->second;
  copies_.erase(found);
  if (copy.dtype != value.dtype || copy.numel != value.numel || value.dimensions > kMaxTensorDimensions) return false;
  outcome = Outcome{};
  outcome.gradient_present = copy.gradient_present;
  ParameterStatistics& statistics = outcome.statistics;
  statistics.has_gradient = copy.has_gradient;
  statistics.gradient = copy.gradient_total;
  statistics.has_update = copy.value != nullptr || copy.numel == 0;
  statistics.has_dot = copy.gradient != nullptr;
  if (value.numel != 0) {
    Compare(value, copy.value, copy.gradient, KernelsFor(BestKernels(), value.dtype), statistics);
  }
  GroupTotals& group = groups_[optimizer_group];
  group.gradient_sum_squares += copy.gradient_total.sum_squares;
  group.update_sum_squares += statistics.update.update_sum_squares;
  ++group.observed;
  return true;
} catch (...) {
  return false;
}

bool ParameterObserver::GroupSums(std::uint32_t group, GroupTotals& sums) noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  const auto found = groups_.find(group);
  if (found == groups_.end()) return false;
  sums = found->second;
  return true;
}

void ParameterObserver::EndStep() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  copies_.clear();
  groups_.clear();
  std::size_t kept = 0;
  std::erase_if(chunks_, [&](Chunk& chunk) {
    chunk.used = 0;
    if (kept + chunk.capacity > kCopyBytesKept) return true;
    kept += chunk.capacity;
    return false;
  });
  chunk_bytes_ = kept;
}

}  // namespace neuraldbg
