#include "daemon/app/run_session.h"

#include <utility>

#include "spdlog/spdlog.h"

namespace neuraldbg {

absl::StatusOr<std::unique_ptr<RunSession>> RunSession::Open(Store& store, StoredRun run) {
  std::unique_ptr<RunSession> session(new RunSession(std::move(run)));
  if (absl::Status status = session->Replay(store); !status.ok()) return status;
  return session;
}

absl::Status RunSession::Replay(Store& store) {
  absl::StatusOr<Store::EngineResume> resume = store.ResumeEngine(run_.id);
  if (!resume.ok()) return resume.status();
  std::uint64_t from = resume->frame_sequence;
  if (!resume->snapshot.empty() && !engine_.Restore(resume->snapshot)) {
    // Another release wrote it. The frames are all there, so the answer is only slower, not different.
    spdlog::warn("run {}: the stored detector state was written by another release; replaying the whole run",
                 run_.display_name);
    from = 0;
  }
  const absl::StatusOr<std::vector<StoredRank>> ranks = store.ListRanks(run_.id);
  if (!ranks.ok()) return ranks.status();
  for (const StoredRank& rank : *ranks) {
    const absl::StatusOr<Topology> topology = store.GetTopology(rank.key);
    if (!topology.ok()) return topology.status();
    engine_.SetTopology(rank.key, *topology);
  }
  const absl::StatusOr<std::vector<StepFrame>> frames = store.FramesSince(run_.id, from);
  if (!frames.ok()) return frames.status();
  for (const StepFrame& frame : *frames) engine_.OnFrame(frame);
  any_frame_ = !frames->empty() || !resume->snapshot.empty();
  frames_since_snapshot_ = static_cast<std::uint32_t>(frames->size());
  stale_ = !frames->empty();
  // What the replay emits was stored together with its frames.
  transitions_stored_ = resume->transitions_stored;
  engine_.TakeTransitions();
  return absl::OkStatus();
}

void RunSession::SetTopology(const RankKey& rank, const Topology& topology) {
  engine_.SetTopology(rank, topology);
  if (any_frame_) snapshot_due_ = true;
}

void RunSession::Feed(const Commit& commit, Clock::time_point now) {
  if (commit.frames.empty()) return;
  for (const StepFrame& frame : commit.frames) engine_.OnFrame(frame);
  frames_since_snapshot_ += static_cast<std::uint32_t>(commit.frames.size());
  any_frame_ = true;
  stale_ = true;
  frame_at_ = now;
}

bool RunSession::DiagnosisDue(Clock::time_point now) const {
  return stale_ && (now - diagnosed_at_ >= kDiagnosisPeriod || now - frame_at_ >= kQuiet);
}

bool RunSession::SnapshotDue(Clock::time_point now) const {
  return snapshot_due_ || frames_since_snapshot_ >= kSnapshotFrames ||
         (frames_since_snapshot_ > 0 && now - frame_at_ >= kIdle);
}

void RunSession::Complete(Commit& commit, Clock::time_point now) {
  Feed(commit, now);
  Finish(commit, DiagnosisDue(now), SnapshotDue(now), now);
}

void RunSession::CompleteEnded(Commit& commit, RankFate fate, std::vector<LastPlace> places, Clock::time_point now) {
  Feed(commit, now);
  engine_.OnRankFate(commit.rank.key, fate, commit.rank.last_step, commit.rank.last_site, std::move(places));
  any_frame_ = true;
  Finish(commit, true, true, now);
}

void RunSession::CompleteLast(Commit& commit, Clock::time_point now) {
  Feed(commit, now);
  Finish(commit, stale_, frames_since_snapshot_ > 0 || snapshot_due_, now);
}

void RunSession::Finish(Commit& commit, bool diagnose, bool snapshot, Clock::time_point now) {
  commit.transitions = engine_.TakeTransitions();
  // Stored ids count from 1, so that a stream that has seen nothing yet asks for what comes after 0.
  for (Transition& transition : commit.transitions) transition.id = ++transitions_stored_;
  if (diagnose || !commit.transitions.empty()) {
    commit.diagnosis = engine_.Diagnose();
    diagnosed_at_ = now;
    stale_ = false;
  }
  if (snapshot) {
    commit.engine_snapshot = engine_.Snapshot();
    frames_since_snapshot_ = 0;
    snapshot_due_ = false;
  }
}

}  // namespace neuraldbg
