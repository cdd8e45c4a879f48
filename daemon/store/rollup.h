// The roll-up pyramid: what 16, 256 or 4096 consecutive frames of a rank come to, per site and statistic.
//
// A cell keeps what a plot must not lose (the extremes and where they are, the first NaN and the first infinity) beside
// mean, last value and counts. Cells merge, so every level is made from the one beneath it. A bucket that is not full
// is not stored: everything it would hold is in the level beneath, and in the end in the pending frames, all of the
// same transaction.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "daemon/store/block_layout.h"

namespace neuraldbg::store {

// Frames per bucket, finest first; each is a multiple of the one before it.
inline constexpr std::array<std::uint32_t, 3> kRollupLevels = {16, 256, 4096};

struct RollupCell {
  std::uint32_t finite = 0, nan = 0, inf = 0;  // how many values there were of each sort
  float min = 0, max = 0, last = 0, inf_value = 0;
  double mean = 0;
  std::uint64_t min_step = 0, max_step = 0, last_step = 0, nan_step = 0, inf_step = 0;  // the first of each

  void Add(std::uint64_t step, float value);
  void Merge(const RollupCell& other);  // in any order: steps decide what is first and last
  bool empty() const { return finite + nan + inf == 0; }
};

struct RollupBucket {
  std::uint64_t min_step = UINT64_MAX, max_step = 0;
};

// Cells lie column by column, within a column statistic by statistic, within that bucket by bucket.
struct Rollup {
  std::vector<RollupBucket> buckets;
  std::vector<ColumnKey> columns;
  std::vector<RollupCell> cells;

  RollupCell& Cell(std::size_t column, std::size_t statistic, std::size_t bucket) {
    return cells[(column * kMaxStatistics + statistic) * buckets.size() + bucket];
  }
  const RollupCell& Cell(std::size_t column, std::size_t statistic, std::size_t bucket) const {
    return cells[(column * kMaxStatistics + statistic) * buckets.size() + bucket];
  }
};

// One bucket for every `frames_per_bucket` frames.
Rollup RollUp(std::span<const StepFrame> frames, std::size_t frames_per_bucket);

EncodedBlock EncodeRollup(const Rollup& rollup);

// Buckets and columns, no cells.
std::optional<Rollup> DecodeRollupDirectory(ByteSpan bytes);

// Calls `visit(column, bucket, cell)` for every cell of one statistic that holds values. False if the bytes are
// damaged.
bool DecodeRollupSection(const Rollup& directory, RecordKind kind, ByteSpan section,
                         const std::function<void(std::size_t, std::size_t, const RollupCell&)>& visit);

// One empty bucket over the buckets and columns of all parts. Filled by MergeStatistic, part by part in their order.
Rollup MergedDirectory(std::span<const Rollup> parts);
bool MergeStatistic(Rollup& merged, const Rollup& part, RecordKind kind, std::size_t statistic, ByteSpan section);

}  // namespace neuraldbg::store
