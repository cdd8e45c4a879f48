// What an optimizer step does to a parameter: a copy of value and gradient before it, the comparison after it.
//
// Owner: RankSession. Thread-safety: any thread; a mutex orders the calls, and a call that finds it taken gives up
// rather than waits. Memory: copies live in a pool that is emptied at the end of every step and never exceeds
// kCopyBytesMax; beyond that a parameter is observed without its update (validity bits say so).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "agent/src/packing.h"
#include "agent/src/tensor_layout.h"

namespace neuraldbg {

inline constexpr std::size_t kCopyBytesMax = std::size_t{1} << 30;    // copies of one step; default, by judgement
inline constexpr std::size_t kCopyBytesKept = std::size_t{64} << 20;  // kept between steps to spare page faults

struct GroupTotals {
  double gradient_sum_squares = 0;
  double update_sum_squares = 0;
  std::uint32_t observed = 0;
};

class ParameterObserver {
 public:
  // False when nothing could be kept (element type, lock taken).
  bool Before(std::uint32_t site, const TensorView& value, const TensorView* gradient, bool gradient_present) noexcept;

  struct Outcome {
    ParameterStatistics statistics;
    bool gradient_present = false;
  };
  // False without a preceding Before of this step, or when the value can no longer be read.
  bool After(std::uint32_t site, std::uint32_t optimizer_group, const TensorView& value, Outcome& outcome) noexcept;

  bool GroupSums(std::uint32_t group, GroupTotals& sums) noexcept;
  void EndStep() noexcept;  // forgets everything of the step

 private:
  struct Copy {
    const char* value = nullptr;     // in memory order, null when the pool was full
    const char* gradient = nullptr;  // likewise
    std::uint64_t numel = 0;
    DType dtype = DType::kUnknown;
    bool gradient_present = false;
    bool has_gradient = false;
    Accumulator gradient_total;
  };

  char* Allocate(std::size_t bytes) noexcept;

  std::mutex mutex_;
  std::unordered_map<std::uint32_t, Copy> copies_;  // by site
  std::unordered_map<std::uint32_t, GroupTotals> groups_;
  struct Chunk {
    std::unique_ptr<char[]> memory;
    std::size_t capacity = 0, used = 0;
  };
  std::vector<Chunk> chunks_;
  std::size_t chunk_bytes_ = 0;  // sum of capacities
};

}  // namespace neuraldbg
