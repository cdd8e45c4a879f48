#include "daemon/app/rank_driver.h"

#include <algorithm>
#include <utility>

#include "shared/segment_name.h"
#include "spdlog/spdlog.h"

namespace neuraldbg {

absl::StatusOr<std::size_t> RankDriver::Turn(const SessionOpener& open_session, Clock::time_point now) {
  if (state_ != State::kLive) return 0;
  if (pending_) {
    if (absl::Status status = PersistPending(now); !status.ok()) return status;
    if (state_ != State::kLive) return 0;
  }
  RankReader& reader = *segment_.reader;
  // Asked before the drain: what an owner pushed before it went is then sure to be seen by it.
  const OwnerState owner = AskOwner(now);
  if (session_ == nullptr) {
    reader.PollManifest();
    if (!reader.identified()) {
      if (owner != OwnerState::kAlive || reader.manifest_corrupt() || reader.poisoned()) {
        GiveUp("it ended before it said which run it belongs to");
      }
      return 0;
    }
    if (absl::Status status = Adopt(open_session, now); !status.ok()) return status;
    if (state_ != State::kLive) return 0;
  }
  const std::size_t consumed = reader.Drain();
  uncommitted_ += consumed;
  FollowManifest();
  absl::Status status;
  if (reader.poisoned()) {
    // Truncated under the mapping: what was read before is real, nothing more will come.
    status = CommitEnd(OwnerState::kDead, now);
  } else if (owner != OwnerState::kAlive && consumed == 0 && !reader.Pending()) {
    status = CommitEnd(owner, now);
  } else if (CommitDue(now)) {
    Commit commit = NewCommit(RankState::kRunning, now);
    session_->Complete(commit, now);
    status = Persist(std::move(commit), now);
  }
  if (!status.ok()) return status;
  return consumed;
}

absl::Status RankDriver::Flush(Clock::time_point now) {
  if (state_ != State::kLive || session_ == nullptr) return absl::OkStatus();
  if (pending_) {
    if (absl::Status status = PersistPending(now); !status.ok() || state_ != State::kLive) return status;
  }
  segment_.reader->Drain();
  FollowManifest();
  totals_at_ = {};
  Commit commit = NewCommit(RankState::kRunning, now);
  session_->CompleteLast(commit, now);
  return Persist(std::move(commit), now);
}

void RankDriver::FollowManifest() {
  if (segment_.reader->PollManifest()) session_->SetTopology(key_, segment_.reader->topology());
}

OwnerState RankDriver::AskOwner(Clock::time_point now) {
  if (owner_ == OwnerState::kAlive && now - owner_asked_at_ >= kOwnerPeriod) {
    owner_ = segment_.reader->owner_state();
    owner_asked_at_ = now;
    if (!unlinked_ && segment_.claim.Unlinked()) {
      unlinked_ = true;
      spdlog::warn(
          "{} was removed by somebody else: it is drained to its end, but records that are in it when this daemon ends "
          "are lost",
          path());
    }
  }
  return owner_;
}

bool RankDriver::CommitDue(Clock::time_point now) const {
  const RankReader& reader = *segment_.reader;
  const auto age = now - committed_at_;
  if (reader.frames_waiting() > 0 && (age >= kCommitPeriod || reader.frames_waiting() >= kCommitFrames)) return true;
  if (uncommitted_ >= reader.identity().lane_capacity / 4) return true;
  if ((uncommitted_ > 0 || reader.manifest_waiting()) && age >= kPartialCommitPeriod) return true;
  return session_->WantsCommit(now);
}

absl::Status RankDriver::Adopt(const SessionOpener& open_session, Clock::time_point now) {
  RankReader& reader = *segment_.reader;
  const SegmentIdentity& identity = reader.identity();
  const RunEntry& entry = reader.topology().run;
  if (!IsValidRunName(entry.run_name) || identity.rank >= kRanksMax) {
    GiveUp("its run name or rank is not a valid one");
    return absl::OkStatus();
  }
  const absl::StatusOr<StoredRun> run = store_.AdoptRun(identity.owner_uid, entry.run_name, entry.launch,
                                                        std::max(identity.world_size, 1u), entry.framework);
  if (!run.ok()) return run.status();
  const absl::StatusOr<RankKey> key = ChooseKey(*run);
  if (!key.ok()) return key.status();
  const absl::StatusOr<RunSession*> session = open_session(*run);
  if (!session.ok()) return session.status();
  key_ = *key;
  session_ = *session;
  ++session_->live_ranks;
  session_->SetTopology(key_, reader.topology());
  // At once, so that the rank's place is taken before another segment asks for one.
  Commit commit = NewCommit(RankState::kRunning, now);
  session_->Complete(commit, now);
  return Persist(std::move(commit), now);
}

// A rank that started again without saying so (no elastic restart count) takes the next free incarnation.
absl::StatusOr<RankKey> RankDriver::ChooseKey(const StoredRun& run) {
  const std::optional<RankKey>& resumed = segment_.reader->resumed_key();
  if (resumed && resumed->run_id == run.id) return *resumed;
  const SegmentIdentity& identity = segment_.reader->identity();
  RankKey key{.run_id = run.id, .rank = identity.rank, .incarnation = identity.incarnation};
  const absl::StatusOr<std::vector<StoredRank>> ranks = store_.ListRanks(run.id);
  if (!ranks.ok()) return ranks.status();
  std::uint32_t newest = 0;
  bool taken = false;
  for (const StoredRank& rank : *ranks) {
    if (rank.key.rank != key.rank) continue;
    newest = std::max(newest, rank.key.incarnation);
    taken = taken || (rank.key.incarnation == key.incarnation && rank.segment_uuid != identity.uuid);
  }
  if (taken) key.incarnation = newest + 1;
  return key;
}

Commit RankDriver::NewCommit(RankState state, Clock::time_point now) {
  RankReader& reader = *segment_.reader;
  const StepAssembler& assembler = reader.assembler();
  Commit commit;
  commit.rank.key = key_;
  commit.rank.host = host_name_.empty() ? reader.topology().run.host : host_name_;
  commit.rank.pid = reader.identity().pid;
  commit.rank.state = state;
  commit.rank.last_step = assembler.last_step();
  commit.rank.last_site = assembler.last_site();
  commit.rank.records_received = assembler.received();
  commit.rank.records_dropped = reader.dropped();
  commit.rank.records_produced = assembler.received() + reader.invalid() + reader.dropped();
  lanes_quarantined_ = reader.lanes_quarantined();
  commit.rank.segment_uuid = reader.identity().uuid;
  commit.lane_heads = reader.heads();
  commit.manifest = reader.TakeManifest();
  commit.frames = reader.TakeFrames();
  for (StepFrame& frame : commit.frames) frame.rank = key_;
  if (state != RankState::kRunning || now - totals_at_ >= kTotalsPeriod) {
    totals_at_ = now;
    const std::vector<SiteTotal>& totals = assembler.site_totals();
    for (std::uint32_t site = 0; site < totals.size(); ++site) {
      if (totals[site].records == 0) continue;
      commit.site_totals.push_back(
          {.site = site, .records = totals[site].records, .last_step = totals[site].last_step});
    }
  }
  commit.assembler_state = reader.State();  // after TakeManifest, whose count is part of it
  return commit;
}

absl::Status RankDriver::CommitEnd(OwnerState owner, Clock::time_point now) {
  segment_.reader->FinishSteps();
  fate_ = owner == OwnerState::kClosed ? RankFate::kFinished : RankFate::kDied;
  Commit commit = NewCommit(fate_ == RankFate::kFinished ? RankState::kFinished : RankState::kDied, now);
  session_->CompleteEnded(commit, fate_, segment_.reader->LastPlaces(), now);
  return Persist(std::move(commit), now);
}

absl::Status RankDriver::Persist(Commit commit, Clock::time_point now) {
  pending_ = std::move(commit);
  return PersistPending(now);
}

absl::Status RankDriver::PersistPending(Clock::time_point now) {
  if (!pending_) return absl::OkStatus();
  const Commit& commit = *pending_;
  if (absl::Status status = store_.Apply(commit); !status.ok()) return status;
  segment_.reader->Committed();
  committed_at_ = now;
  uncommitted_ = 0;
  feed_.Publish(commit.rank.key.run_id, commit.transitions, commit.diagnosis.has_value());
  pending_.reset();
  if (fate_ != RankFate::kRunning) {
    segment_.reader->Unlink();
    state_ = State::kEnded;
  }
  return absl::OkStatus();
}

void RankDriver::GiveUp(std::string reason) {
  state_ = State::kGivenUp;
  reason_ = std::move(reason);
  if (owner_ != OwnerState::kAlive) segment_.reader->Unlink();
}

}  // namespace neuraldbg
