// What the ingest thread counts, for whoever asks: the metrics.
//
// Owner: the ingest loop. One writer (the ingest thread); any thread reads. Relaxed atomics and no lock: the ingest
// thread never waits for a reader, and a reader may see one count newer than another.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/result.h"

namespace neuraldbg {

// Of a segment's layout (docs/ring-format.md).
struct LayoutVersion {
  std::uint16_t major = 0, minor = 0;
  auto operator<=>(const LayoutVersion&) const = default;
  std::string Text() const { return std::to_string(major) + "." + std::to_string(minor); }
};

// The layouts of segments that this daemon cannot read, each once, the first kMax.
class OtherLayouts {
 public:
  static constexpr std::size_t kMax = 16;

  // On the ingest thread.
  void Add(LayoutVersion version) {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < count; ++i) {
      if (seen_[i] == version) return;
    }
    if (count == kMax) return;
    seen_[count] = version;
    count_.store(count + 1, std::memory_order_release);  // partner: the acquire in All
  }
  std::vector<LayoutVersion> All() const {
    const auto count = static_cast<std::ptrdiff_t>(count_.load(std::memory_order_acquire));
    return {seen_.begin(), seen_.begin() + count};
  }

 private:
  std::array<LayoutVersion, kMax> seen_{};  // entries below count_ are never written again
  std::atomic<std::size_t> count_ = 0;
};

struct IngestCounters {
  std::atomic<std::uint64_t> slots_drained = 0;
  std::atomic<std::uint64_t> segments_adopted = 0;
  std::array<std::atomic<std::uint64_t>, kErrcCount> segments_refused{};  // by Errc
  std::atomic<std::uint64_t> store_failures = 0;
  // As of the last turn, of the segments that are drained now.
  std::atomic<std::uint64_t> segments_live = 0, lanes_quarantined = 0;
  OtherLayouts other_layouts;
};

}  // namespace neuraldbg
