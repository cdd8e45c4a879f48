#include "agent/src/tensor_layout.h"

#include <cstring>

namespace neuraldbg {
namespace {

template <typename T>
void GatherElements(const T* source, std::int64_t stride, std::size_t count, T* target) noexcept {
  for (std::size_t i = 0; i < count; ++i) target[i] = source[static_cast<std::int64_t>(i) * stride];
}

// Joins neighbours: (outer stride == inner stride * inner size) is one longer run.
MemoryWalk Coalesce(const std::int64_t* sizes, const std::int64_t* strides, int dimensions) noexcept {
  MemoryWalk walk;
  for (int d = 0; d < dimensions; ++d) {
    if (walk.dimensions > 0 && walk.strides[walk.dimensions - 1] == strides[d] * sizes[d]) {
      walk.sizes[walk.dimensions - 1] *= sizes[d];
      walk.strides[walk.dimensions - 1] = strides[d];
      continue;
    }
    walk.sizes[walk.dimensions] = sizes[d];
    walk.strides[walk.dimensions] = strides[d];
    ++walk.dimensions;
  }
  return walk;
}

}  // namespace

void MemoryOrder(const TensorView& order, int* permutation) noexcept {
  for (int d = 0; d < order.dimensions; ++d) {
    // Insertion sort, stable: at most 16 dimensions, usually in order already.
    int position = d;
    while (position > 0 && order.strides[permutation[position - 1]] < order.strides[d]) {
      permutation[position] = permutation[position - 1];
      --position;
    }
    permutation[position] = d;
  }
}

MemoryWalk MakeMemoryWalk(const TensorView& view, int left_out) noexcept {
  int permutation[kMaxTensorDimensions];
  MemoryOrder(view, permutation);
  std::int64_t sizes[kMaxTensorDimensions];
  std::int64_t strides[kMaxTensorDimensions];
  int kept = 0;
  for (int i = 0; i < view.dimensions; ++i) {
    const int d = permutation[i];
    if (view.sizes[d] == 1 || d == left_out) continue;
    sizes[kept] = view.sizes[d];
    strides[kept] = view.strides[d];
    ++kept;
  }
  return Coalesce(sizes, strides, kept);
}

void GatherRun(const void* source, std::int64_t stride, std::size_t count, std::size_t element_bytes,
               void* target) noexcept {
  if (stride == 1) {
    std::memcpy(target, source, count * element_bytes);
    return;
  }
  switch (element_bytes) {
    case 1:
      return GatherElements(static_cast<const std::uint8_t*>(source), stride, count,
                            static_cast<std::uint8_t*>(target));
    case 2:
      return GatherElements(static_cast<const std::uint16_t*>(source), stride, count,
                            static_cast<std::uint16_t*>(target));
    case 4:
      return GatherElements(static_cast<const std::uint32_t*>(source), stride, count,
                            static_cast<std::uint32_t*>(target));
    default:
      return GatherElements(static_cast<const std::uint64_t*>(source), stride, count,
                            static_cast<std::uint64_t*>(target));
  }
}

void CopyInOrderOf(const TensorView& order, const TensorView& view, std::size_t element_bytes, void* target) noexcept {
  int permutation[kMaxTensorDimensions];
  MemoryOrder(order, permutation);
  std::int64_t sizes[kMaxTensorDimensions];
  std::int64_t strides[kMaxTensorDimensions];
  int kept = 0;
  for (int i = 0; i < view.dimensions; ++i) {
    if (view.sizes[permutation[i]] == 1) continue;
    sizes[kept] = view.sizes[permutation[i]];
    strides[kept] = view.strides[permutation[i]];
    ++kept;
  }
  const MemoryWalk walk = Coalesce(sizes, strides, kept);
  const auto* source = static_cast<const char*>(view.data);
  auto* next = static_cast<char*>(target);
  const auto run = static_cast<std::size_t>(walk.inner_size());
  ForEachRun(walk, [&](std::int64_t offset) {
    GatherRun(source + offset * static_cast<std::int64_t>(element_bytes), walk.inner_stride(), run, element_bytes,
              next);
    next += run * element_bytes;
    return true;
  });
}

}  // namespace neuraldbg
