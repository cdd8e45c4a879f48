// Consumer end of a rank's segment. Every byte of it is hostile: it is copied once into private memory and only then
// validated; indices are masked, lengths checked, truncation under the mapping is contained (SIGBUS handler).
//
// Owner: the daemon; one SegmentReader per segment, used by one thread. Exactly once across SIGKILL of the daemon:
// Drain delivers, the caller makes the delivery and `heads()` durable in one transaction, then Release() frees the
// slots. After a restart Attach takes the greater of the durable heads and those in shared memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/manifest.h"
#include "shared/record.h"
#include "shared/result.h"
#include "shared/segment_access.h"

namespace neuraldbg {

using SegmentUuid = std::array<std::uint8_t, 16>;

struct SegmentIdentity {
  SegmentUuid uuid{};
  std::string path;
  std::uint32_t owner_uid = 0;  // of the file (fstat), never from the header
  std::uint32_t pid = 0;        // information only
  std::uint32_t rank = 0, world_size = 1, incarnation = 0;
  std::uint64_t created_realtime_ns = 0;
  std::uint16_t major = 0, minor = 0;
  std::uint32_t lanes = 0, lane_capacity = 0, sites = 0;
};

struct LaneCheckpoint {
  std::uint64_t head = 0;          // records consumed
  std::uint64_t next_attempt = 0;  // lowest attempt number not yet seen
};

struct LaneCounters {
  std::uint64_t consumed = 0, dropped = 0, invalid = 0, resyncs = 0;
  std::uint32_t owner_tid = 0;
  bool quarantined = false;
};

// Where a lane ended.
struct LaneEnd {
  std::uint32_t owner_tid = 0;  // the thread that holds or held it; 0: it was given back
  Record last{};                // newest record, published or dropped
};

enum class OwnerState : std::uint8_t { kAlive, kClosed, kDead };

class SegmentReader {
 public:
  // Opens and validates. `durable` are heads of an earlier life of the daemon for the same uuid, or empty.
  // Error codes: kBadMagic, kBadVersion, kBadLayout, kBadOwner, kIo, kPermission.
  static Result<std::unique_ptr<SegmentReader>> Attach(
      const std::string& path, const SegmentAccess& access = {},
      const std::function<std::vector<LaneCheckpoint>(const SegmentIdentity&)>& durable = {});
  ~SegmentReader();
  SegmentReader(const SegmentReader&) = delete;
  SegmentReader& operator=(const SegmentReader&) = delete;

  const SegmentIdentity& identity() const noexcept;
  ManifestReader& manifest() noexcept;

  // Delivers validated private copies, lane by lane in program order, at most `max_per_lane` each. Returns the number
  // of ring slots consumed (valid or not). 0 with poisoned() true: the file was resized; give the segment up.
  std::size_t Drain(const std::function<void(std::uint32_t lane, std::span<const Record> records)>& deliver,
                    std::size_t max_per_lane = 4096);
  void Release() noexcept;  // publishes the heads to the producer (release store, pairs with the writer's acquire)
  std::vector<LaneCheckpoint> heads() const;

  std::vector<LaneCounters> counters() const;
  std::uint64_t dropped_total() const noexcept;  // all lanes and pushes that found no lane
  std::uint64_t SiteDropped(std::uint32_t site) const noexcept;
  std::uint64_t heartbeat_ns() const noexcept;
  OwnerState owner_state() const noexcept;  // kernel record lock; clean close flag
  bool poisoned() const noexcept;
  bool Pending() const noexcept;  // something is published and not yet drained

  // The last records that found their lane full, lane by lane, oldest first; at most 511 a lane. Empty while the owner
  // lives. They stay counted as dropped: they explain a crash, they do not complete a step.
  std::vector<Record> ReadBlackBox() const;

  // The newest record of every lane that has one: what its thread did last. Empty while the owner lives.
  std::vector<LaneEnd> LaneEnds() const;

  // Removes the file, or empties it where only its owner may remove it. Only for segments whose owner is dead or closed
  // and that are drained and durable.
  void Unlink() noexcept;

  struct Impl;

 private:
  explicit SegmentReader(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace neuraldbg
