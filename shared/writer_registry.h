// The segments that this process owns. Three things need to find them without holding a pointer to a SegmentWriter: the
// end of a thread (gives its lanes back), fork (silences the child) and a reader or sweep in the same process (must not
// open the file, see owner_lock.h).
//
// Thread-safety: a process-local mutex orders everything here; no push takes it. Lock order: it is always the
// innermost.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "shared/manifest.h"
#include "shared/mapping.h"
#include "shared/ring_layout.h"

namespace neuraldbg {

// Descriptor and mapping of a segment, shared between its writer and readers in the same process.
struct SharedMapping {
  FileDescriptor fd;  // declared first: closed last, so the lock outlives the mapping
  std::unique_ptr<Mapping> mapping;
  SegmentHeader header{};
};

// What the registry may touch of a writer.
struct WriterState {
  std::uint64_t id = 0;                     // never used twice in a process
  std::atomic<std::uint64_t> active_id{0};  // `id` while pushes are accepted, otherwise 0
  pid_t pid = 0;                            // of the process that created it
  dev_t device = 0;
  ino_t inode = 0;
  std::shared_ptr<SharedMapping> shared;
  SegmentView view;
  ManifestWriter manifest;
  // Serial number of the thread that owns a lane, 0: free. Kept outside the segment: nobody else can write it, and
  // thread ids are used again while serial numbers are not.
  std::array<std::atomic<std::uint64_t>, kMaxLanes> lane_owner{};
};

// kFull when kMaxWriters are registered already. The entry is visible to fork handlers from here on.
Error RegisterWriter(WriterState& state) noexcept;
// Records which file the writer owns, before that file can be seen under any name but a temporary one.
void SetOwnedFile(WriterState& state, dev_t device, ino_t inode) noexcept;
void UnregisterWriter(WriterState& state) noexcept;

// The mapping of a segment of this process, or null. Never for segments that a parent created before a fork.
std::shared_ptr<SharedMapping> FindOwnSegment(dev_t device, ino_t inode) noexcept;

// Gives back every lane that the thread with this serial number owns, in all writers.
void ReleaseLanesOfThread(std::uint64_t thread_serial) noexcept;

}  // namespace neuraldbg
