#include "daemon/app/ingest_loop.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "shared/segment_sweep.h"

namespace neuraldbg {
namespace {

std::int64_t Nanoseconds(IngestLoop::Clock::time_point time) {
  return time.time_since_epoch() / std::chrono::nanoseconds(1);
}

std::uint64_t RealtimeNow() {
  return static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

std::string StoreRemedy(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) {
    return "Make room there: the records wait in shared memory, and the newest are dropped and counted once that is "
           "full, too.";
  }
  if (absl::IsPermissionDenied(status)) return "Make the data directory writable for the user of the daemon.";
  if (absl::IsDataLoss(status)) return "Move the file away and start neuraldbgd again; it begins a new one.";
  return "See the log of the daemon; the records wait in shared memory.";
}

DaemonWarning NotStoring(const absl::Status& status, std::uint64_t since_realtime_ns) {
  const std::string since =
      absl::FormatTime("%Y-%m-%d %H:%M:%S %Ez", absl::FromUnixNanos(static_cast<std::int64_t>(since_realtime_ns)),
                       absl::LocalTimeZone());
  return {DaemonWarning::Kind::kNotStoring, since_realtime_ns,
          absl::StrCat("Nothing has been stored since ", since, ": ", status.message()), StoreRemedy(status)};
}

constexpr std::string_view kInstallSame = "Install the same release for the job and for the daemon.";

// "magic 12, owner 4"
std::string Reasons(const IngestCounters& counters) {
  std::string reasons;
  for (std::size_t code = 0; code < kErrcCount; ++code) {
    const std::uint64_t count = counters.segments_refused[code].load(std::memory_order_relaxed);
    if (count == 0) continue;
    absl::StrAppend(&reasons, reasons.empty() ? "" : ", ", std::string(ErrcName(static_cast<Errc>(code))), " ", count);
  }
  return reasons;
}

}  // namespace

IngestLoop::IngestLoop(Store& store, EventFeed& feed, IngestOptions options)
    : store_(store),
      feed_(feed),
      options_(std::move(options)),
      watcher_(options_.watcher),
      idle_since_ns_(Nanoseconds(Clock::now())) {}

void IngestLoop::Run() {
  const Clock::time_point started = Clock::now();
  busy_at_ = started;
  for (;;) {
    const Clock::time_point now = Clock::now();
    LookForSegments(now);
    const std::size_t drained = TurnAll(now);
    if (drained > 0) busy_at_ = now;
    counters_.slots_drained.fetch_add(drained, std::memory_order_relaxed);
    RemoveEnded(now);
    SayLeftOut(limiter_.TakeLeftOut(now));
    if (!orphans_closed_ && now - started >= kOrphansAfter && now >= store_retry_at_) CloseOrphans(now);
    if (now >= store_retry_at_) StoreTakesData();  // a refusal in this turn would have moved it
    Wait(Pause(now));
    const std::lock_guard lock(mutex_);
    if (stop_) break;
  }
  FlushAll();
  SayLeftOut(limiter_.TakeAllLeftOut());
}

void IngestLoop::SayLeftOut(const std::vector<std::string>& sentences) {
  for (const std::string& sentence : sentences) spdlog::warn("{}", sentence);
}

void IngestLoop::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
}

std::chrono::nanoseconds IngestLoop::idle_for() const {
  const std::int64_t since = idle_since_ns_.load(std::memory_order_relaxed);
  return std::chrono::nanoseconds(since == 0 ? 0 : Nanoseconds(Clock::now()) - since);
}

void IngestLoop::LookForSegments(Clock::time_point now) {
  const bool force = now - looked_at_ >= kForcedLookPeriod;
  if (force) looked_at_ = now;
  if (now - swept_at_ >= kSweepPeriod) {
    swept_at_ = now;
    const SweepResult swept =
        SweepSegments({.directory = options_.watcher.directory, .uid = static_cast<std::uint32_t>(::geteuid())});
    if (swept.segments_removed + swept.temporary_removed > 0) {
      spdlog::info("{}: removed {} segments and {} unfinished files that dead processes left behind",
                   options_.watcher.directory, swept.segments_removed, swept.temporary_removed);
    }
  }
  if (!watcher_.DirectoryChanged(force)) return;
  SegmentWatcher::Scan scan = watcher_.Look([this](const SegmentUuid& uuid) -> std::optional<SegmentHistory> {
    absl::StatusOr<std::optional<Store::SegmentResume>> resume = store_.ResumeSegment(uuid);
    if (!resume.ok() || !resume->has_value()) return std::nullopt;
    Store::SegmentResume& known = **resume;
    return SegmentHistory{
        .key = known.key, .lane_heads = std::move(known.lane_heads), .state = std::move(known.assembler_state)};
  });
  if (!scan.directory_error.empty() && limiter_.Allow("the directory of segments cannot be searched", kLinesMax, now)) {
    spdlog::error("{} cannot be searched for segments: {}", options_.watcher.directory, scan.directory_error);
  }
  for (const RefusedSegment& refused : scan.refused) Refused(refused, now);
  if (!scan.refused.empty()) WarnOfRefused();
  for (AdoptedSegment& segment : scan.adopted) {
    counters_.segments_adopted.fetch_add(1, std::memory_order_relaxed);
    if (limiter_.Allow("ranks that are drained", kRankLinesMax, now)) {
      spdlog::info("draining {} (rank {}, pid {}, uid {})", segment.reader->identity().path,
                   segment.reader->identity().rank, segment.reader->identity().pid,
                   segment.reader->identity().owner_uid);
    }
    drivers_.push_back(std::make_unique<RankDriver>(std::move(segment), store_, feed_, options_.host_name));
  }
}

void IngestLoop::Refused(const RefusedSegment& refused, Clock::time_point now) {
  counters_.segments_refused[static_cast<std::size_t>(refused.code)].fetch_add(1, std::memory_order_relaxed);
  const std::string text = absl::StrCat(refused.path, " is left alone: ", refused.reason);
  if (refused.other_user) {  // as it should be on a host with several users
    ++other_users_;
    spdlog::debug("{}", text);
  } else if (refused.code == Errc::kBadVersion) {
    // A job that is silently not watched is the worst of them: garbage beside it must not use up its line.
    if (limiter_.Allow("segments of another release", kLinesMax, now)) spdlog::warn("{} {}", text, kInstallSame);
    if (refused.layout) counters_.other_layouts.Add(*refused.layout);
    if (options_.warnings != nullptr) {
      options_.warnings->SegmentLeftAlone(
          {DaemonWarning::Kind::kSegmentLeftAlone, RealtimeNow(), text, std::string(kInstallSame)});
    }
  } else if (limiter_.Allow("files that are left alone", kLinesMax, now)) {
    spdlog::warn("{}", text);
  }
}

// One warning for all files that are in the way. Segments of other users alone are none, and those of another release
// have one each as long as there are few.
void IngestLoop::WarnOfRefused() {
  if (options_.warnings == nullptr) return;
  std::uint64_t files = 0;
  for (const auto& count : counters_.segments_refused) files += count.load(std::memory_order_relaxed);
  const std::uint64_t other_release =
      counters_.segments_refused[static_cast<std::size_t>(Errc::kBadVersion)].load(std::memory_order_relaxed);
  if (files == other_users_ + other_release && other_release <= DaemonWarnings::kLeftAloneMax) return;
  options_.warnings->FilesLeftAlone(
      {DaemonWarning::Kind::kSegmentLeftAlone, RealtimeNow(),
       absl::StrCat(files, files == 1 ? " file in " : " files in ", options_.watcher.directory,
                    files == 1 ? " has" : " have", " the name of a segment and ", files == 1 ? "is" : "are",
                    " left alone: ", Reasons(counters_), "."),
       "The log of the daemon names them; remove what no job needs."});
}

std::size_t IngestLoop::TurnAll(Clock::time_point now) {
  if (now < store_retry_at_) return 0;
  PutAwaitingFirst();
  std::size_t drained = 0;
  const auto open = [this](const StoredRun& run) { return OpenSession(run); };
  for (const auto& driver : drivers_) {
    const absl::StatusOr<std::size_t> turn = driver->Turn(open, now);
    if (!turn.ok()) {
      StoreFailed(turn.status(), now);
      return drained;
    }
    drained += *turn;
  }
  return drained;
}

void IngestLoop::PutAwaitingFirst() {
  if (store_failing_since_ns_ == 0) return;
  std::stable_partition(drivers_.begin(), drivers_.end(), [](const auto& driver) { return driver->awaiting_store(); });
}

void IngestLoop::StoreFailed(const absl::Status& status, Clock::time_point now) {
  counters_.store_failures.fetch_add(1, std::memory_order_relaxed);
  store_retry_at_ = now + kStoreRetryPeriod;
  const bool said = store_failing_since_ns_ != 0;
  if (!said) store_failing_since_ns_ = RealtimeNow();
  if (options_.warnings != nullptr) options_.warnings->NotStoring(NotStoring(status, store_failing_since_ns_));
  if (!said) spdlog::error("the store refuses data, records wait in shared memory: {}", status.ToString());
}

void IngestLoop::StoreTakesData() {
  if (std::exchange(store_failing_since_ns_, 0) == 0) return;
  if (options_.warnings != nullptr) options_.warnings->StoringAgain();
  spdlog::info("the store takes data again");
}

void IngestLoop::RemoveEnded(Clock::time_point now) {
  for (const auto& driver : drivers_) {
    if (driver->state() == RankDriver::State::kLive) continue;
    watcher_.Retire(driver->path());
    if (driver->state() == RankDriver::State::kGivenUp) {
      if (limiter_.Allow("segments that are given up", kRankLinesMax, now))
        spdlog::warn("{} is given up: {}", driver->path(), driver->reason());
      continue;
    }
    RunSession& session = *driver->session();
    if (limiter_.Allow("ranks that ended", kRankLinesMax, now)) {
      spdlog::info("run {}: rank {} {}", session.run().display_name, driver->rank(),
                   driver->fate() == RankFate::kFinished ? "finished" : "died");
    }
    --session.live_ranks;
  }
  std::erase_if(drivers_, [](const auto& driver) { return driver->state() != RankDriver::State::kLive; });
  CountLive();
  if (now >= store_retry_at_) EndRuns(now);
  if (!drivers_.empty() || !sessions_.empty()) {
    idle_since_ns_.store(0, std::memory_order_relaxed);
  } else if (idle_since_ns_.load(std::memory_order_relaxed) == 0) {
    idle_since_ns_.store(Nanoseconds(Clock::now()), std::memory_order_relaxed);
  }
}

void IngestLoop::CountLive() {
  std::uint64_t quarantined = 0;
  for (const auto& driver : drivers_) quarantined += driver->lanes_quarantined();
  counters_.segments_live.store(drivers_.size(), std::memory_order_relaxed);
  counters_.lanes_quarantined.store(quarantined, std::memory_order_relaxed);
}

// A run has ended when none of its ranks is live. Where the disk is full, its end waits as its records do.
void IngestLoop::EndRuns(Clock::time_point now) {
  for (auto session = sessions_.begin(); session != sessions_.end();) {
    absl::Status status;
    if (session->second->live_ranks == 0) status = EndRun(session->second->run());
    if (!status.ok()) StoreFailed(status, now);
    const bool ended = session->second->live_ranks == 0 && !absl::IsResourceExhausted(status);
    session = ended ? sessions_.erase(session) : std::next(session);
  }
}

// It died if the newest incarnation of any rank did.
absl::Status IngestLoop::EndRun(const StoredRun& run) {
  const absl::StatusOr<std::vector<StoredRank>> ranks = store_.ListRanks(run.id);
  if (!ranks.ok()) return ranks.status();
  std::map<std::uint32_t, std::pair<std::uint32_t, RankState>> newest;  // rank -> (incarnation, state)
  for (const StoredRank& rank : *ranks) {
    auto& entry = newest[rank.key.rank];
    if (rank.key.incarnation >= entry.first) entry = {rank.key.incarnation, rank.state};
  }
  const bool died = std::any_of(newest.begin(), newest.end(),
                                [](const auto& entry) { return entry.second.second == RankState::kDied; });
  absl::Status status = store_.SetRunState(run.id, died ? RunState::kDied : RunState::kFinished);
  if (!status.ok()) return status;
  feed_.Publish(run.id, {}, false);
  if (options_.on_run_end) options_.on_run_end(store_, run);
  return absl::OkStatus();
}

// Runs that an earlier life left running and whose segments are gone (a reboot, an operator): nobody will ever end
// them.
void IngestLoop::CloseOrphans(Clock::time_point now) {
  orphans_closed_ = true;
  const absl::StatusOr<std::vector<StoredRun>> runs = store_.ListRuns();
  if (!runs.ok()) return StoreFailed(runs.status(), now);
  for (const StoredRun& run : *runs) {
    if (run.state != RunState::kRunning || sessions_.contains(run.id)) continue;
    const absl::Status status = CloseOrphan(run, now);
    if (absl::IsResourceExhausted(status)) orphans_closed_ = false;  // once there is room
    if (!status.ok()) return StoreFailed(status, now);
  }
}

absl::Status IngestLoop::CloseOrphan(const StoredRun& run, Clock::time_point now) {
  spdlog::info("run {}: its segments are gone; taken as died", run.display_name);
  absl::StatusOr<std::unique_ptr<RunSession>> session = RunSession::Open(store_, run);
  if (!session.ok()) return session.status();
  absl::StatusOr<std::vector<StoredRank>> ranks = store_.ListRanks(run.id);
  if (!ranks.ok()) return ranks.status();
  for (StoredRank& rank : *ranks) {
    if (rank.state != RankState::kRunning) continue;
    Commit commit;
    commit.rank = rank;
    commit.rank.state = RankState::kDied;
    (*session)->CompleteEnded(commit, RankFate::kDied, {}, now);
    if (absl::Status status = store_.Apply(commit); !status.ok()) return status;
    feed_.Publish(run.id, commit.transitions, true);
  }
  return store_.SetRunState(run.id, RunState::kDied);
}

absl::StatusOr<RunSession*> IngestLoop::OpenSession(const StoredRun& run) {
  auto& session = sessions_[run.id];
  if (session == nullptr) {
    absl::StatusOr<std::unique_ptr<RunSession>> opened = RunSession::Open(store_, run);
    if (!opened.ok()) {
      sessions_.erase(run.id);
      return opened.status();
    }
    session = *std::move(opened);
    if (run.state != RunState::kRunning) {
      if (absl::Status status = store_.SetRunState(run.id, RunState::kRunning); !status.ok()) return status;
    }
  }
  return session.get();
}

void IngestLoop::FlushAll() {
  const Clock::time_point now = Clock::now();
  PutAwaitingFirst();
  for (const auto& driver : drivers_) {
    if (const absl::Status status = driver->Flush(now); !status.ok()) {
      // Not lost: the records stay in shared memory and the next daemon finds them.
      spdlog::error("the store refuses the last data, records stay in shared memory: {}", status.ToString());
      break;
    }
  }
  drivers_.clear();
  sessions_.clear();
}

std::chrono::milliseconds IngestLoop::Pause(Clock::time_point now) const {
  const auto quiet = now - busy_at_;
  if (quiet < kBusyFor) return kPauseBusy;
  if (quiet < kWaitingFor) return kPauseWaiting;
  return quiet < kIdleFor ? kPauseIdle : kPauseSilent;
}

void IngestLoop::Wait(std::chrono::milliseconds pause) {
  std::unique_lock lock(mutex_);
  stopped_.wait_for(lock, pause, [this] { return stop_; });
}

}  // namespace neuraldbg
