// Producer end of a rank's segment: creates it, publishes it, and pushes records into single-producer lanes.
//
// Owner: the training process; one SegmentWriter per attached session. Thread-safety: Push may be called from any
// thread; each thread claims a lane of its own at its first push and releases it when it ends. Everything else is for
// the owning thread. Nothing here throws, blocks, allocates on the push path or makes a system call there.
//
// Order: a record is visible once `tail` of its lane was stored with release; that store pairs with the acquire load
// in SegmentReader::Drain. Dying between filling the slot and the store leaves no trace: the slot is not yet counted.
//
// Full ring: the newest record is dropped and counted, per lane and per site, exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "shared/manifest.h"
#include "shared/record.h"
#include "shared/result.h"

namespace neuraldbg {

inline constexpr std::uint32_t kNoGroup = 0xffffffffu;

struct SegmentOptions {
  std::string directory = "/dev/shm";
  std::string run_name;  // hashed into the file name
  std::string launch;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t incarnation = 0;
  std::uint32_t lanes = 4;
  std::uint32_t lane_capacity = 16384;  // records, a power of two; halved down to lane_capacity_min when space is short
  std::uint32_t lane_capacity_min = 64;
  std::uint32_t sites = 8192;  // per-site drop counters
  std::uint32_t manifest_bytes = 4u << 20;
  std::uint32_t mode = 0600;
  std::uint32_t group = kNoGroup;  // gid to give the file to
};

enum class PushOutcome : std::uint8_t { kPushed, kDropped, kNoLane, kDisabled };

class SegmentWriter {
 public:
  // Creates and publishes the segment (a half-made one is never visible). On failure the error says why; the caller
  // disables itself. kNoSpace: the directory is full even at the smallest capacity.
  static Result<std::unique_ptr<SegmentWriter>> Create(const SegmentOptions& options) noexcept;
  ~SegmentWriter();
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  // Wait-free. `record.attempt` and `record.tag` are set here. Counts every call as an attempt of this segment.
  PushOutcome Push(const Record& record) noexcept;

  // Push attempts of this segment so far, all threads. Exact once the pushing threads are quiet (a step has ended).
  std::uint64_t attempts() const noexcept;
  std::uint64_t dropped() const noexcept;
  ManifestWriter& manifest() noexcept;
  void Heartbeat() noexcept;  // stores the current monotonic time; called about once a second by the agent's thread
  bool Unlinked() const noexcept;  // the file was removed under us (logind, an operator): publish a new one
  bool Claimed() const noexcept;   // a daemon holds the file, under whatever name or none, and drains it to its end
  // Counts as dropped here what `lost` holds and no daemon has consumed, per site; returns how many. What `lost` had
  // dropped itself is added if no daemon ever drained it: otherwise that was counted before. Only before the first
  // push, and once nothing is pushed into `lost` any more.
  struct Lost {
    std::uint64_t records = 0, drops = 0;
  };
  Lost CountLost(const SegmentWriter& lost) noexcept;
  bool enabled() const noexcept;  // false in a forked child and after Close
  const std::string& path() const noexcept;
  const std::uint8_t* uuid() const noexcept;  // 16 bytes
  std::uint32_t lane_capacity() const noexcept;

  // Announces a clean end. The mapping and the lock stay until destruction; further pushes return kDisabled.
  void Close() noexcept;

  // Implementation detail, public so that the thread-local lane cache in ring_writer.cc can name it.
  struct Impl;

 private:
  explicit SegmentWriter(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace neuraldbg
