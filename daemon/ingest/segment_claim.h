// An exclusive flock on a segment's file: two daemons on one host never drain the same segment, and the kernel frees it
// when a daemon dies. It is independent of the producer's record lock, which tells whether the producer lives, and
// costs the producer nothing: nobody else ever takes it.
//
// Owner: whoever drains the segment; movable. Released by the destructor.
#pragma once

#include <optional>
#include <string>

#include "daemon/model/ingest_counters.h"

namespace neuraldbg {

class SegmentClaim {
 public:
  // Nothing: another daemon has it, or the file is gone or may not be opened.
  static std::optional<SegmentClaim> Take(const std::string& path);
  ~SegmentClaim();
  SegmentClaim(SegmentClaim&& other) noexcept;
  SegmentClaim& operator=(SegmentClaim&& other) noexcept;

  // The file has lost its name: what is mapped stays readable, but no other process will find it again.
  bool Unlinked() const;
  // A daemon that may not remove the file has read it to its end and given its memory back.
  bool Emptied() const;
  // The layout that the file was written with; nothing if it is no segment at all.
  std::optional<LayoutVersion> Layout() const;

 private:
  explicit SegmentClaim(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace neuraldbg
