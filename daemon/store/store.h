// The store: runs, ranks, sites, series, transitions and diagnoses in one SQLite file (WAL).
//
// Threads: one writer (the ingest thread) calls the mutating functions; readers (RPC threads) use their own read-only
// StoreReader each. Everything that one drain produced is committed in one transaction together with the lane heads,
// so that a daemon killed at any instant neither loses nor repeats (docs/life-of-a-record.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/model/diagnosis.h"
#include "daemon/model/sample.h"
#include "shared/ring_reader.h"

namespace neuraldbg {

enum class RunState : std::uint8_t { kRunning, kFinished, kDied };
enum class RankState : std::uint8_t { kRunning, kFinished, kDied };

struct StoredRun {
  std::uint64_t id = 0;
  std::string display_name;  // name, or name#2 for the second launch of that name
  std::string name, launch;
  std::uint32_t owner_uid = 0;
  RunState state = RunState::kRunning;
  std::uint32_t world_size = 1;
  std::uint64_t created_realtime_ns = 0, updated_realtime_ns = 0;
  std::uint64_t last_step = 0, steps_seen = 0;
  std::string framework;
};

struct StoredRank {
  RankKey key;
  std::string host;
  std::uint32_t pid = 0;
  RankState state = RankState::kRunning;
  std::uint64_t last_step = 0;
  std::uint32_t last_site = kNoSite;
  std::uint64_t records_produced = 0, records_received = 0, records_dropped = 0;
  SegmentUuid segment_uuid{};  // all zero: it had none on this host (an imported run)
};

struct SiteSummary {
  std::uint32_t site = kNoSite;
  std::uint64_t records = 0;
  std::uint64_t last_step = 0;
};

// All that one pass over one rank's segment changes; committed atomically.
struct Commit {
  StoredRank rank;  // state and counters after this pass
  std::vector<LaneCheckpoint> lane_heads;
  std::vector<ManifestEntry> manifest;     // new entries, in order
  std::vector<StepFrame> frames;           // completed (or abandoned) steps, in order
  std::vector<std::byte> assembler_state;  // records of steps not yet complete; opaque to the store
  std::vector<Transition> transitions;     // newly emitted for the run
  std::optional<Diagnosis> diagnosis;      // if it changed
  std::vector<std::byte> engine_snapshot;  // empty: none this time
  std::vector<SiteSummary> site_totals;    // absolute counts per site after this pass
};

struct SeriesPoint {
  std::uint64_t step = 0;
  float value = 0;
};

struct SeriesQuery {
  std::uint64_t run_id = 0;
  std::optional<std::uint32_t> rank;
  std::vector<std::uint32_t> sites;  // empty = all
  Statistic statistic = Statistic::kRms;
  std::uint64_t from_step = 0, to_step = UINT64_MAX;  // inclusive
  std::uint32_t max_points = 0;  // 0 = full detail; else rolled up, keeping extremes and non-finite values
};

struct Series {
  std::uint32_t site = kNoSite;
  std::uint32_t rank = 0;
  std::vector<SeriesPoint> points;
};

class RunSink;  // daemon/store/run_sink.h

// Read side; safe to use from one thread at a time, several instances may read while the writer writes.
class StoreReader {
 public:
  virtual ~StoreReader() = default;
  virtual absl::StatusOr<std::vector<StoredRun>> ListRuns() = 0;  // newest first
  // `name`: display name, plain name (the newest launch of it) or name@launch; empty: the newest run. NOT_FOUND
  // otherwise.
  virtual absl::StatusOr<StoredRun> FindRun(const std::string& name) = 0;
  virtual absl::StatusOr<std::vector<StoredRank>> ListRanks(std::uint64_t run_id) = 0;
  virtual absl::StatusOr<Topology> GetTopology(const RankKey& rank) = 0;
  virtual absl::StatusOr<std::vector<SiteSummary>> SiteTotals(const RankKey& rank) = 0;
  virtual absl::StatusOr<std::vector<Series>> QuerySeries(const SeriesQuery& query) = 0;
  // Transitions with id > after_id, at most limit.
  virtual absl::StatusOr<std::vector<Transition>> ListTransitions(std::uint64_t run_id, std::uint64_t after_id,
                                                                  std::uint32_t limit) = 0;
  virtual absl::StatusOr<Diagnosis> GetDiagnosis(std::uint64_t run_id) = 0;
  // Frames of one rank with from <= step <= to, in order: what a replay feeds to a RunEngine.
  virtual absl::StatusOr<std::vector<StepFrame>> ReadFrames(const RankKey& rank, std::uint64_t from,
                                                            std::uint64_t to) = 0;
  // The whole run as it is at one moment, a block of each rank in memory at a time. Keeps the writer's log from being
  // reset until it returns.
  virtual absl::Status ReadRun(std::uint64_t run_id, RunSink& sink) = 0;
  // The newest state of the run's engine; empty if there is none yet.
  virtual absl::StatusOr<std::vector<std::byte>> EngineSnapshot(std::uint64_t run_id) = 0;
};

class Store : public StoreReader {
 public:
  // Opens or creates `<directory>/neuraldbg.db`. FAILED_PRECONDITION: another daemon holds it. The message is one
  // sentence for the user.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& directory);
  static absl::StatusOr<std::unique_ptr<StoreReader>> OpenReadOnly(const std::string& directory);
  // Whether there is a database in the directory, of whatever sort.
  static bool Exists(const std::string& directory);
  // Removes the database and, if nothing else is in it, the directory. For whoever found none there before its Open and
  // had no use for it; nothing happens where another process has it open.
  static void Remove(const std::string& directory);
  // Of the database and its log; files that are not there count nothing. Any thread.
  static std::uint64_t BytesOnDisk(const std::string& directory);

  // Finds or creates the run of (uid, name, launch).
  virtual absl::StatusOr<StoredRun> AdoptRun(std::uint32_t owner_uid, const std::string& name,
                                             const std::string& launch, std::uint32_t world_size,
                                             const std::string& framework) = 0;
  virtual absl::Status Apply(const Commit& commit) = 0;
  virtual absl::Status SetRunState(std::uint64_t run_id, RunState state) = 0;
  // All that `changes` does to this store, or, if it returns an error or the process ends in it, nothing of it.
  virtual absl::Status Together(const std::function<absl::Status()>& changes) = 0;
  // For a restart: what was durable for this segment.
  struct SegmentResume {
    RankKey key;
    std::vector<LaneCheckpoint> lane_heads;
    std::vector<std::byte> assembler_state;
  };
  virtual absl::StatusOr<std::optional<SegmentResume>> ResumeSegment(const SegmentUuid& uuid) = 0;
  // The newest engine snapshot of a run, with what came since: per rank the first step not contained in it, and the
  // number of transitions already stored (replaying must not store them twice).
  struct EngineResume {
    std::vector<std::byte> snapshot;
    std::uint64_t frame_sequence = 0;  // frames of this run with a larger sequence are not in the snapshot
    std::uint64_t transitions_stored = 0;
  };
  virtual absl::StatusOr<EngineResume> ResumeEngine(std::uint64_t run_id) = 0;
  // Frames of a run in the order in which they were committed, all ranks, after `frame_sequence`.
  virtual absl::StatusOr<std::vector<StepFrame>> FramesSince(std::uint64_t run_id, std::uint64_t frame_sequence) = 0;
};

}  // namespace neuraldbg
