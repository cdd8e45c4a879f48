// One run while its ranks are live: the engine, what of its answers is stored, and what is due.
//
// Owner: the ingest loop; one thread. The rule that makes restarts exact: the engine sees a frame only right before the
// commit that stores it, and every snapshot goes into the commit of the frames it contains. What the engine answers to
// anything but frames (the fate of a rank, a topology that grew) is covered by taking a snapshot in the same commit.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/infer/run_engine.h"
#include "daemon/store/store.h"

namespace neuraldbg {

class RunSession {
 public:
  using Clock = std::chrono::steady_clock;
  // A replay after a restart runs over at most this many frames; more often would cost more than it saves.
  static constexpr std::uint32_t kSnapshotFrames = 256;
  // The diagnosis follows every transition at once; in between it is refreshed this often, for its step counts.
  static constexpr std::chrono::milliseconds kDiagnosisPeriod{200};

  // No frame for this long: nothing more is on its way, so the diagnosis may be made to fit. Well above the poll period
  // of a busy loop, well below the 50 ms that an event may take.
  static constexpr std::chrono::milliseconds kQuiet{20};
  // No frame for this long: a good moment for a snapshot, so that an idle daemon restarts without a replay.
  static constexpr std::chrono::seconds kIdle{2};

  // Brings the engine to where the store is: newest snapshot, then the frames since.
  static absl::StatusOr<std::unique_ptr<RunSession>> Open(Store& store, StoredRun run);

  const StoredRun& run() const { return run_; }

  void SetTopology(const RankKey& rank, const Topology& topology);
  // Feeds the commit's frames to the engine and adds what follows from them: transitions, and diagnosis and snapshot
  // where they are due.
  void Complete(Commit& commit, Clock::time_point now);
  // As Complete, for a rank that has ended, with everything due.
  void CompleteEnded(Commit& commit, RankFate fate, std::vector<LastPlace> places, Clock::time_point now);
  // As Complete, for the last commit of this daemon's life.
  void CompleteLast(Commit& commit, Clock::time_point now);
  // A commit without new frames is worth making.
  bool WantsCommit(Clock::time_point now) const { return DiagnosisDue(now) || SnapshotDue(now); }

  // Ranks whose segments are drained now.
  std::size_t live_ranks = 0;

 private:
  explicit RunSession(StoredRun run) : run_(std::move(run)) {}
  absl::Status Replay(Store& store);
  void Feed(const Commit& commit, Clock::time_point now);
  void Finish(Commit& commit, bool diagnose, bool snapshot, Clock::time_point now);
  bool DiagnosisDue(Clock::time_point now) const;
  bool SnapshotDue(Clock::time_point now) const;

  StoredRun run_;
  RunEngine engine_;
  std::uint64_t transitions_stored_ = 0;  // also the newest id
  std::uint32_t frames_since_snapshot_ = 0;
  bool any_frame_ = false;
  bool stale_ = false;         // frames were fed that no stored diagnosis covers
  bool snapshot_due_ = false;  // the engine was told something that no replay of frames repeats
  Clock::time_point diagnosed_at_{}, frame_at_{};
};

}  // namespace neuraldbg
