// Walks the values of one statistic of one rank, at full detail or at the coarsest roll-up that is fine enough.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/rollup.h"
#include "daemon/store/sqlite_connection.h"
#include "daemon/store/store_queries.h"

namespace neuraldbg::store {

// Frames by their ordinal within the rank, the end excluded.
struct FrameRange {
  std::uint64_t first = 0, end = 0;
  std::uint64_t size() const { return end - first; }
};

class SeriesScan {
 public:
  // A single value, or what a bucket of the roll-up came to; `frame` is the ordinal where it starts.
  using OnPoint = std::function<void(std::uint32_t site, std::uint64_t frame, std::uint64_t step, float value)>;
  using OnCell = std::function<void(std::uint32_t site, std::uint64_t frame, const RollupCell& cell)>;

  SeriesScan(SqliteConnection& database, const SeriesQuery& query, const RankRow& rank);

  // The frames from the first to the last that holds a step of the query.
  absl::StatusOr<FrameRange> Range();

  absl::Status Detail(const FrameRange& range, const OnPoint& on_point);

  // Buckets of `level` frames inside the steps of the query; where a bucket is only partly inside, or does not exist
  // yet, the next finer level, down to single values.
  absl::Status Rolled(std::size_t level_index, const FrameRange& range, const OnPoint& on_point, const OnCell& on_cell);

 private:
  bool WantsSite(std::uint32_t site) const;
  bool WantsStep(std::uint64_t step) const { return step >= query_.from_step && step <= query_.to_step; }
  absl::StatusOr<FrameRange> EdgeBlock(SqliteStatement& blocks, bool at_start);
  absl::Status DetailOfBlock(const SqliteRow& row, const FrameRange& range, const OnPoint& on_point);
  absl::Status RolledBlock(const SqliteRow& row, std::uint32_t level, const OnCell& on_cell,
                           std::vector<FrameRange>& finer);

  SqliteConnection& database_;
  const SeriesQuery& query_;
  RankRow rank_;
  std::vector<std::uint32_t> sites_;  // sorted; empty: all
};

}  // namespace neuraldbg::store
