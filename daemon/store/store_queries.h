// What StoreReader answers, on one connection; used by the read-only reader and by the writer alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/sqlite_connection.h"
#include "daemon/store/store.h"

namespace neuraldbg::store {

// A step as a column that SQL compares: SQLite's integers are signed.
std::int64_t StepColumn(std::uint64_t step);

struct RankRow {
  std::int64_t id = 0;
  RankKey key;
  std::uint64_t frames = 0, blocked_frames = 0;
};

class StoreQueries {
 public:
  explicit StoreQueries(SqliteConnection& database) : database_(database) {}

  absl::StatusOr<std::vector<StoredRun>> ListRuns();
  absl::StatusOr<StoredRun> FindRun(const std::string& name);
  absl::StatusOr<std::vector<StoredRank>> ListRanks(std::uint64_t run_id);
  absl::StatusOr<Topology> GetTopology(const RankKey& rank);
  absl::StatusOr<std::vector<SiteSummary>> SiteTotals(const RankKey& rank);
  absl::StatusOr<std::vector<Series>> QuerySeries(const SeriesQuery& query);
  absl::StatusOr<std::vector<Transition>> ListTransitions(std::uint64_t run_id, std::uint64_t after_id,
                                                          std::uint32_t limit);
  absl::StatusOr<Diagnosis> GetDiagnosis(std::uint64_t run_id);
  absl::StatusOr<std::vector<StepFrame>> ReadFrames(const RankKey& rank, std::uint64_t from, std::uint64_t to);

  absl::StatusOr<std::vector<std::byte>> EngineSnapshot(std::uint64_t run_id);
  // For the whole of a run; in the caller's transaction.
  absl::StatusOr<StoredRun> GetRun(std::uint64_t run_id);
  absl::StatusOr<std::vector<RankRow>> RanksOf(std::uint64_t run_id);
  absl::StatusOr<std::vector<ManifestEntry>> Manifest(const RankRow& rank);

  // For the writer's restart.
  absl::StatusOr<std::vector<StepFrame>> FramesSince(std::uint64_t run_id, std::uint64_t frame_sequence);

 private:
  absl::StatusOr<RankRow> FindRank(const RankKey& key);
  absl::StatusOr<StoredRun> OneRun(SqliteStatement& statement, const std::string& missing);

  SqliteConnection& database_;
};

// `site_totals` of a rank as bytes.
std::vector<std::byte> EncodeSiteTotals(const std::vector<SiteSummary>& totals);
std::vector<SiteSummary> DecodeSiteTotals(std::span<const std::byte> bytes);

}  // namespace neuraldbg::store
