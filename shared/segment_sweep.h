// Removal of what dead owners left behind. Run by the agent before it creates a segment and by the daemon now and then.
//
// A file counts as left behind only if nobody holds its owner lock. Segments of this very process are never opened
// (owner_lock.h says why). Safe to run from several processes at once.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace neuraldbg {

struct SweepOptions {
  std::string directory = "/dev/shm";
  std::uint32_t uid = 0;  // files of other users are left alone: the sticky bit would refuse them anyway
  // A dead segment is evidence that a daemon started later still wants; after this it only fills memory.
  std::chrono::seconds segment_ttl = std::chrono::hours(24);
  // Longer than any creation takes between opening the file and locking it.
  std::chrono::seconds temporary_ttl = std::chrono::seconds(5);
};

struct SweepResult {
  std::uint32_t temporary_removed = 0;
  std::uint32_t segments_removed = 0;
};

// A segment that was read to its end by a daemon that may not remove it, and that gave its memory back
// (SegmentReader::Unlink). Its bytes count, not its blocks alone: a file just written to a disk has none yet either.
bool IsEmptied(int fd, const struct stat& file) noexcept;

SweepResult SweepSegments(const SweepOptions& options) noexcept;

}  // namespace neuraldbg
