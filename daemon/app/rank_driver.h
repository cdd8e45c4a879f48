// Drives one segment from the first look to the unlink: identity, drain, commit, end.
//
// Owner: the ingest loop; one thread. Order of every commit, which makes delivery exactly once: drained records ->
// frames -> engine -> Store::Apply (one transaction with the lane heads) -> RankReader::Committed, which frees the ring
// slots. A commit that the store refuses (a full disk) is kept and tried again as it is; until it succeeds, nothing of
// the segment is drained, so that the ring holds the rest and counts what does not fit.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/app/run_session.h"
#include "daemon/ingest/segment_watcher.h"
#include "daemon/model/event_feed.h"
#include "daemon/store/store.h"

namespace neuraldbg {

class RankDriver {
 public:
  using Clock = std::chrono::steady_clock;
  // Finds or opens the session of a run.
  using SessionOpener = std::function<absl::StatusOr<RunSession*>(const StoredRun&)>;

  enum class State { kLive, kEnded, kGivenUp };

  RankDriver(AdoptedSegment segment, Store& store, EventFeed& feed, std::string host_name)
      : segment_(std::move(segment)), store_(store), feed_(feed), host_name_(std::move(host_name)) {}

  // One turn. Returns the number of ring slots consumed. An error: the store refused the commit, which is kept.
  absl::StatusOr<std::size_t> Turn(const SessionOpener& open_session, Clock::time_point now);
  // Last turn of the daemon: everything drained becomes durable, with a snapshot.
  absl::Status Flush(Clock::time_point now);

  State state() const { return state_; }
  // Why the segment was given up, in one sentence; empty unless state is kGivenUp.
  const std::string& reason() const { return reason_; }
  const std::string& path() const { return segment_.reader->identity().path; }
  std::uint32_t rank() const { return segment_.reader->identity().rank; }
  RunSession* session() const { return session_; }
  RankFate fate() const { return fate_; }
  std::uint64_t lanes_quarantined() const { return lanes_quarantined_; }  // as of the last commit
  bool awaiting_store() const { return pending_.has_value(); }

 private:
  // Frames of one rank are committed together for this long: one transaction costs about as much as ten steps of a
  // small model, and an event may take 50 ms from ring to stream.
  static constexpr std::chrono::milliseconds kCommitPeriod{10};
  // Records of an unfinished step are made durable this often, so that a slow step does not hold the ring.
  static constexpr std::chrono::milliseconds kPartialCommitPeriod{250};
  // Asking whether the owner lives is a system call.
  static constexpr std::chrono::milliseconds kOwnerPeriod{50};
  // Site totals are for people; they need not be in every transaction.
  static constexpr std::chrono::milliseconds kTotalsPeriod{1000};
  // More frames than this are committed at once, whatever the time.
  static constexpr std::size_t kCommitFrames = 64;

  absl::Status Adopt(const SessionOpener& open_session, Clock::time_point now);
  absl::StatusOr<RankKey> ChooseKey(const StoredRun& run);
  bool CommitDue(Clock::time_point now) const;
  Commit NewCommit(RankState state, Clock::time_point now);
  absl::Status CommitEnd(OwnerState owner, Clock::time_point now);
  absl::Status Persist(Commit commit, Clock::time_point now);
  absl::Status PersistPending(Clock::time_point now);
  void FollowManifest();
  void GiveUp(std::string reason);
  OwnerState AskOwner(Clock::time_point now);

  AdoptedSegment segment_;
  Store& store_;
  EventFeed& feed_;
  std::string host_name_;
  State state_ = State::kLive;
  std::string reason_;
  RunSession* session_ = nullptr;
  RankKey key_;
  RankFate fate_ = RankFate::kRunning;
  std::optional<Commit> pending_;  // refused by the store so far
  OwnerState owner_ = OwnerState::kAlive;
  bool unlinked_ = false;  // said already
  std::uint64_t lanes_quarantined_ = 0;
  std::size_t uncommitted_ = 0;  // slots drained since the last commit
  Clock::time_point committed_at_{}, owner_asked_at_{}, totals_at_{};
};

}  // namespace neuraldbg
