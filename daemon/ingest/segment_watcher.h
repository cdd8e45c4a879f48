// Finds the segments in the shared-memory directory, adopts those that may be read and turns away the rest, each once
// and with the reason.
//
// Owner: the ingest loop; one thread. Whoever can create a file in /dev/shm can put anything there, so names are only a
// hint: the owner's uid comes from the opened file, contents are validated before a byte of them is used, and a file
// that was turned away is not looked at again while it exists (at most kRefusedMax are remembered, the oldest go
// first).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/ingest/rank_reader.h"
#include "daemon/ingest/segment_claim.h"
#include "daemon/model/ingest_counters.h"
#include "shared/result.h"
#include "shared/segment_access.h"

namespace neuraldbg {

struct WatcherOptions {
  std::string directory = "/dev/shm";
  SegmentAccess access;
};

struct RefusedSegment {
  std::string path;
  std::string reason;  // one sentence
  Errc code = Errc::kOk;
  std::optional<LayoutVersion> layout;  // kBadVersion: how another release lays it out, if that could be read
  bool other_user = false;              // a segment of somebody else, as hosts with several users have them
};

// A segment this daemon drains now. The claim is released after the reader is gone.
struct AdoptedSegment {
  SegmentClaim claim;
  std::unique_ptr<RankReader> reader;
};

class SegmentWatcher {
 public:
  static constexpr std::size_t kSegmentsMax = 1024;  // ranks of one host, restarts included
  static constexpr std::size_t kRefusedMax = 4096;

  struct Scan {
    std::vector<AdoptedSegment> adopted;  // by creation time, so that incarnations come in order
    std::vector<RefusedSegment> refused;
    std::string directory_error;  // not empty: the directory could not be read
  };

  explicit SegmentWatcher(WatcherOptions options) : options_(std::move(options)) {}

  // Cheap when nothing changed: one stat of the directory, whose modification time covers create, rename and unlink.
  // `force` looks regardless, for changes within the granularity of that time.
  bool DirectoryChanged(bool force);
  Scan Look(const HistoryLookup& history);
  // The owner of a segment gave it up: if the file is still there, it is not to be adopted again.
  void Retire(const std::string& path);

 private:
  struct FileId {
    dev_t device;
    ino_t inode;
    auto operator<=>(const FileId&) const = default;
  };
  static std::optional<FileId> Identify(const std::string& path);
  void Refuse(const FileId& id, RefusedSegment refused, Scan& scan);
  void Consider(const std::string& path, const HistoryLookup& history, Scan& scan);
  void Remember(const FileId& id);

  WatcherOptions options_;
  timespec directory_time_{};
  std::map<std::string, FileId> adopted_;  // by path
  std::set<FileId> known_;                 // turned away or retired
  std::deque<FileId> known_order_;
};

}  // namespace neuraldbg
