// The ingest thread: finds segments, drives each of them, keeps one engine per run, notices when runs end.
//
// Threads: Run is the body of the one thread that touches segments, engines and the writing side of the store. Stop,
// idle_for and counters may be called from any thread. RPC threads never wait for this thread and it never waits for
// them: they meet in the store and in the EventFeed.
//
// Pace: one turn over all segments, then a pause that fits how much was found lately, from 1 ms to 40 ms. The timer and
// the cold caches after it cost, not the scan.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/app/log.h"
#include "daemon/app/rank_driver.h"
#include "daemon/app/run_session.h"
#include "daemon/ingest/segment_watcher.h"
#include "daemon/model/daemon_warnings.h"
#include "daemon/model/event_feed.h"
#include "daemon/model/ingest_counters.h"
#include "daemon/store/store.h"

namespace neuraldbg {

struct IngestOptions {
  WatcherOptions watcher;
  std::string host_name;
  // Called on the ingest thread when the last live rank of a run has ended and everything is stored. May be empty.
  std::function<void(StoreReader& store, const StoredRun& run)> on_run_end;
  // Told what keeps records from being stored; not owned, may be null.
  DaemonWarnings* warnings = nullptr;
};

class IngestLoop {
 public:
  using Clock = std::chrono::steady_clock;

  IngestLoop(Store& store, EventFeed& feed, IngestOptions options);

  void Run();
  void Stop();

  // How long no segment has been live; zero while one is.
  std::chrono::nanoseconds idle_for() const;
  const IngestCounters& counters() const { return counters_; }

 private:
  // A job whose steps take seconds can wait: an event is still on its stream within 50 ms, and looking half as often
  // is what keeps a daemon of eight silent ranks below half a percent of a core (./run bench).
  static constexpr std::chrono::milliseconds kPauseBusy{1}, kPauseWaiting{5}, kPauseIdle{20}, kPauseSilent{40};
  static constexpr std::chrono::milliseconds kBusyFor{50}, kWaitingFor{1000}, kIdleFor{4000};
  // A change within the granularity of the directory's time would be missed otherwise.
  static constexpr std::chrono::seconds kForcedLookPeriod{2};
  static constexpr std::chrono::seconds kStoreRetryPeriod{1};
  static constexpr std::chrono::seconds kSweepPeriod{60};
  // By then every segment that exists was adopted and identified.
  static constexpr std::chrono::seconds kOrphansAfter{2};
  // Lines a minute, so that a broken producer cannot fill a disk. What ranks live through is bounded by the jobs of a
  // host: as many as can be drained at once start, and as many end.
  static constexpr std::uint32_t kLinesMax = 64;
  static constexpr std::uint32_t kRankLinesMax = SegmentWatcher::kSegmentsMax;

  void LookForSegments(Clock::time_point now);
  void Refused(const RefusedSegment& refused, Clock::time_point now);
  void WarnOfRefused();
  void SayLeftOut(const std::vector<std::string>& sentences);
  std::size_t TurnAll(Clock::time_point now);
  // The driver whose commit the store refused goes first: the engine is ahead of the store by that commit, so no other
  // rank may store a snapshot before it. There is at most one.
  void PutAwaitingFirst();
  void RemoveEnded(Clock::time_point now);
  void CountLive();
  void EndRuns(Clock::time_point now);
  absl::Status EndRun(const StoredRun& run);
  void CloseOrphans(Clock::time_point now);
  absl::Status CloseOrphan(const StoredRun& run, Clock::time_point now);
  void FlushAll();
  absl::StatusOr<RunSession*> OpenSession(const StoredRun& run);
  std::chrono::milliseconds Pause(Clock::time_point now) const;
  void Wait(std::chrono::milliseconds pause);
  void StoreFailed(const absl::Status& status, Clock::time_point now);
  void StoreTakesData();

  Store& store_;
  EventFeed& feed_;
  IngestOptions options_;
  SegmentWatcher watcher_;
  std::vector<std::unique_ptr<RankDriver>> drivers_;
  std::map<std::uint64_t, std::unique_ptr<RunSession>> sessions_;  // by run id
  LogLimiter limiter_;
  IngestCounters counters_;
  Clock::time_point looked_at_{}, busy_at_{}, swept_at_{}, store_retry_at_{};
  bool orphans_closed_ = false;
  std::uint64_t other_users_ = 0;             // segments of other users that were passed over; the ingest thread's
  std::uint64_t store_failing_since_ns_ = 0;  // realtime; 0 = it takes data. Said already
  std::atomic<std::int64_t> idle_since_ns_;   // steady clock; 0 = a segment is live

  std::mutex mutex_;  // guards stop_ for the wait
  std::condition_variable stopped_;
  bool stop_ = false;
};

}  // namespace neuraldbg
