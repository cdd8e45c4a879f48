// A consumer that does what the daemon does, with a checkpoint in memory that outlives it in place of the store:
// deliver, make the delivery and the heads durable in one piece, release.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/ring_reader.h"
#include "tests/shared/segment_fixture.h"

namespace neuraldbg::testing {

inline constexpr std::uint32_t kCheckpointLanes = 2;
inline constexpr std::uint32_t kCheckpointSites = 16;
// Few at a time, so that the checkpoint takes a fair part of the time in which a kill can fall.
inline constexpr std::size_t kDrainMax = 4;

// What is durable. `delivered` and `hash` by site, so that lanes may interleave in any way.
struct Checkpoint {
  std::array<std::uint64_t, kCheckpointSites> delivered{}, hash{};
  std::uint64_t damaged = 0;
  std::array<LaneCheckpoint, kCheckpointLanes> lanes{};
};

enum class ConsumerStage : std::uint32_t { kAttaching, kDraining, kCommitting, kReleasing };

struct ConsumerMemory {
  Checkpoint copies[2];  // the one that `valid` names is whole
  std::atomic<std::uint32_t> valid{0};
  std::atomic<ConsumerStage> stage{ConsumerStage::kAttaching};
};

inline std::uint64_t Mix(std::uint64_t hash, std::uint64_t step) { return (hash ^ step) * 1099511628211ull + 1; }

inline void Deliver(Checkpoint& now, std::span<const Record> records) {
  for (const Record& record : records) {
    if (record.site >= kCheckpointSites || !IsIntact(record)) {
      ++now.damaged;
      continue;
    }
    now.hash[record.site] = Mix(now.hash[record.site], record.step);
    ++now.delivered[record.site];
  }
}

// One round of the protocol. Returns the slots taken. `repeats`: checkpoint and release are each done so often, which
// changes nothing but how long they take: once, they take a microsecond, which kills at random times do not meet.
inline std::size_t ConsumeOnce(SegmentReader& reader, ConsumerMemory& memory, Checkpoint& now, int repeats = 1) {
  memory.stage.store(ConsumerStage::kDraining);
  const std::size_t taken =
      reader.Drain([&now](std::uint32_t, std::span<const Record> records) { Deliver(now, records); }, kDrainMax);
  if (taken == 0) return 0;  // the later stages are those with records in hand
  memory.stage.store(ConsumerStage::kCommitting);
  const std::vector<LaneCheckpoint> heads = reader.heads();
  std::copy(heads.begin(), heads.end(), now.lanes.begin());
  const std::uint32_t next = 1 - memory.valid.load();
  for (int i = 0; i < repeats; ++i) {
    memory.copies[next] = now;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  memory.valid.store(next);
  memory.stage.store(ConsumerStage::kReleasing);
  for (int i = 0; i < repeats; ++i) reader.Release();
  return taken;
}

enum class UntilEmpty : std::uint8_t { kNo, kYes };

// Resumes from the checkpoint and drains, for ever or until nothing is left. Non-zero: the segment cannot be attached.
inline int Consume(const std::string& path, ConsumerMemory& memory, UntilEmpty until_empty, int repeats = 1) {
  Checkpoint now = memory.copies[memory.valid.load()];
  const auto attached = SegmentReader::Attach(path, {}, [&now](const SegmentIdentity&) {
    return std::vector<LaneCheckpoint>(now.lanes.begin(), now.lanes.end());
  });
  if (!attached.ok()) return 1;
  while (ConsumeOnce(*attached.value(), memory, now, repeats) > 0 || until_empty == UntilEmpty::kNo) {
  }
  return 0;
}

}  // namespace neuraldbg::testing
