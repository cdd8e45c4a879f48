// What keeps this daemon from recording, for whoever asks it. Kept in memory: a full disk takes no file that says so.
//
// Owner: the composition root. Thread-safe: the ingest thread tells, RPC threads read. Memory: at most kLeftAloneMax
// sentences and one more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace neuraldbg {

struct DaemonWarning {
  enum class Kind : std::uint8_t { kNotStoring, kSegmentLeftAlone };
  Kind kind = Kind::kNotStoring;
  std::uint64_t since_realtime_ns = 0;
  std::string text, remedy;  // a sentence each
};

class DaemonWarnings {
 public:
  static constexpr std::size_t kLeftAloneMax = 16;

  // Replaces the one before.
  void NotStoring(DaemonWarning warning);
  void StoringAgain();
  // The first kLeftAloneMax are kept.
  void SegmentLeftAlone(DaemonWarning warning);

  std::vector<DaemonWarning> Current() const;

 private:
  mutable std::mutex mutex_;
  std::optional<DaemonWarning> not_storing_;
  std::vector<DaemonWarning> left_alone_;
};

}  // namespace neuraldbg
