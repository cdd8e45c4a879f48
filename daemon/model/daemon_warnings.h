// What keeps this daemon from recording, for whoever asks it. Kept in memory: a full disk takes no file that says so.
//
// Owner: the composition root. Thread-safe: the ingest thread tells, RPC threads read. Memory: at most kLeftAloneMax
// sentences and two more.
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

  // How many there are, of all reasons. Replaces the one before, whose time it keeps.
  void FilesLeftAlone(DaemonWarning warning);

  std::vector<DaemonWarning> Current() const;

 private:
  mutable std::mutex mutex_;
  std::optional<DaemonWarning> not_storing_, files_left_alone_;
  std::vector<DaemonWarning> left_alone_;
};

}  // namespace neuraldbg
