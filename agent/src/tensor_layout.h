// Where the elements of a tensor lie, without torch: a view, and a walk over it in the order of memory.
//
// Plain values and pure functions; a view borrows the tensor's memory for the duration of one operator call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shared/record.h"

namespace neuraldbg {

inline constexpr int kMaxTensorDimensions = 16;  // more is legal in torch (64) and not met in models; such are skipped

struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kUnknown;
  int dimensions = 0;
  std::uint64_t numel = 0;
  const std::int64_t* sizes = nullptr;
  const std::int64_t* strides = nullptr;  // in elements
};

// Dimensions of size 1 removed, the others ordered by falling stride, neighbours that continue each other merged. The
// innermost dimension is the last. No dimension at all: one element.
struct MemoryWalk {
  int dimensions = 0;
  std::int64_t sizes[kMaxTensorDimensions] = {};
  std::int64_t strides[kMaxTensorDimensions] = {};

  // The elements are one gapless run of memory (in some order of dimensions).
  bool dense() const noexcept { return dimensions == 0 || (dimensions == 1 && strides[0] == 1); }
  std::int64_t inner_size() const noexcept { return dimensions == 0 ? 1 : sizes[dimensions - 1]; }
  std::int64_t inner_stride() const noexcept { return dimensions == 0 ? 1 : strides[dimensions - 1]; }
};

// `left_out`: dimension that the walk does not enter, or -1. Requires: numel > 0, dimensions <= kMaxTensorDimensions.
MemoryWalk MakeMemoryWalk(const TensorView& view, int left_out = -1) noexcept;

// The dimensions of `order` in the order in which MakeMemoryWalk visits them, for reading several tensors alike.
void MemoryOrder(const TensorView& order, int* permutation) noexcept;

// Visits the innermost runs: visit(offset of the first element, in elements) returns false to stop.
template <typename Visit>
bool ForEachRun(const MemoryWalk& walk, Visit&& visit) noexcept {
  std::int64_t index[kMaxTensorDimensions] = {};
  std::int64_t offset = 0;
  while (true) {
    if (!visit(offset)) return false;
    int d = walk.dimensions - 2;
    for (; d >= 0; --d) {
      offset += walk.strides[d];
      if (++index[d] < walk.sizes[d]) break;
      offset -= walk.strides[d] * walk.sizes[d];
      index[d] = 0;
    }
    if (d < 0) return true;
  }
}

// Copies `count` elements of `element_bytes` (1, 2, 4 or 8) with a stride into contiguous memory.
void GatherRun(const void* source, std::int64_t stride, std::size_t count, std::size_t element_bytes,
               void* target) noexcept;

// Copies the whole view into contiguous memory, in the memory order of `order` (same sizes; may be the view itself).
// Requires: both have elements and the same sizes, element size is 1, 2, 4 or 8.
void CopyInOrderOf(const TensorView& order, const TensorView& view, std::size_t element_bytes, void* target) noexcept;

}  // namespace neuraldbg
