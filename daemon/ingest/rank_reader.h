// One rank's segment on its way to the store: drains it, follows its manifest, assembles its steps.
//
// Owner: the ingest loop; one thread. Between Drain and Committed the slots stay taken in shared memory, so a daemon
// that dies there finds the same records again; Committed frees them. Nothing in the segment is believed: SegmentReader
// validates bytes, TopologyBuilder strings and indices, StepAssembler bounds what is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/ingest/step_assembler.h"
#include "daemon/model/sample.h"
#include "shared/result.h"
#include "shared/ring_reader.h"

namespace neuraldbg {

// What an earlier life of the daemon knew of a segment.
struct SegmentHistory {
  RankKey key;
  std::vector<LaneCheckpoint> lane_heads;
  std::vector<std::byte> state;  // RankReader::State
};
using HistoryLookup = std::function<std::optional<SegmentHistory>(const SegmentUuid&)>;

class RankReader {
 public:
  // Error: why the file is not a segment that may be read, in one sentence.
  static Result<std::unique_ptr<RankReader>> Open(const std::string& path, const SegmentAccess& access,
                                                  const HistoryLookup& history);

  const SegmentIdentity& identity() const { return segment_->identity(); }
  const Topology& topology() const { return topology_; }
  // A RunEntry has come, so the segment can be given to a run. Records wait in the ring until then.
  bool identified() const { return !topology_.run.run_name.empty(); }
  const std::optional<RankKey>& resumed_key() const { return resumed_key_; }

  // Reads manifest entries that are new. Returns true if the topology changed.
  bool PollManifest();
  // Entries read and not yet handed out; the store keeps them. Entries that an earlier life stored are not among them.
  std::vector<ManifestEntry> TakeManifest();

  // One pass over all lanes: at most kDrainMax records each. Returns the number of slots consumed.
  std::size_t Drain();
  // Steps that are finished, in order. After Drain.
  std::vector<StepFrame> TakeFrames();
  std::size_t frames_waiting() const { return frames_.size(); }
  bool manifest_waiting() const { return !new_entries_.empty(); }
  // The producer is gone and nothing is pending: ends the steps in the making as incomplete.
  void FinishSteps();

  // For the commit: lane heads and the opaque state that go with what Drain delivered so far.
  std::vector<LaneCheckpoint> heads() const { return segment_->heads(); }
  std::vector<std::byte> State() const;
  void Committed() { segment_->Release(); }

  OwnerState owner_state() const { return segment_->owner_state(); }
  // What the threads of a process that is gone did last.
  std::vector<LastPlace> LastPlaces() const;
  bool poisoned() const { return segment_->poisoned(); }
  bool Pending() const { return segment_->Pending(); }
  std::uint64_t dropped() const { return segment_->dropped_total(); }
  std::uint64_t invalid() const;
  // Lanes that contradicted themselves too often and are not read any more.
  std::uint64_t lanes_quarantined() const;
  bool manifest_corrupt() const { return manifest_corrupt_; }
  const StepAssembler& assembler() const { return assembler_; }
  void Unlink() { segment_->Unlink(); }

 private:
  // A pass takes at most this many records of a lane, so that one fast rank cannot starve the others.
  static constexpr std::size_t kDrainMax = 4096;

  RankReader(std::unique_ptr<SegmentReader> segment, std::uint64_t already_consumed);
  bool RestoreState(const std::vector<std::byte>& state);

  std::unique_ptr<SegmentReader> segment_;
  Topology topology_;
  std::optional<RankKey> resumed_key_;
  std::vector<ManifestEntry> new_entries_;
  std::uint64_t entries_seen_ = 0;    // in this life
  std::uint64_t entries_stored_ = 0;  // handed out in this or an earlier life
  bool manifest_corrupt_ = false;
  StepAssembler assembler_;
  std::vector<StepFrame> frames_;
};

}  // namespace neuraldbg
