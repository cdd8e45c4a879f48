#include "daemon/store/series_scan.h"

#include <algorithm>
#include <array>

#include "daemon/store/block_rows.h"
#include "daemon/store/frame_codec.h"
#include "daemon/store/status_macros.h"

namespace neuraldbg::store {
namespace {

// The kinds of record that have a statistic, with its place in them.
struct Place {
  RecordKind kind;
  std::size_t statistic;
};
std::vector<Place> PlacesOf(Statistic statistic) {
  std::vector<Place> places;
  for (std::uint8_t k = 0; k < kRecordKindCount; ++k) {
    const auto kind = static_cast<RecordKind>(k);
    if (const std::size_t index = StatisticIndex(kind, statistic); index < kMaxStatistics) {
      places.push_back({kind, index});
    }
  }
  return places;
}

void AddRange(std::vector<FrameRange>& ranges, const FrameRange& range) {
  if (range.size() == 0) {
    return;
  }
  if (!ranges.empty() && ranges.back().end == range.first) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

}  // namespace

SeriesScan::SeriesScan(SqliteConnection& database, const SeriesQuery& query, const RankRow& rank)
    : database_(database), query_(query), rank_(rank), sites_(query.sites) {
  std::sort(sites_.begin(), sites_.end());
}

bool SeriesScan::WantsSite(std::uint32_t site) const {
  return sites_.empty() || std::binary_search(sites_.begin(), sites_.end(), site);
}

absl::StatusOr<FrameRange> SeriesScan::EdgeBlock(SqliteStatement& blocks, bool at_start) {
  FrameRange range{UINT64_MAX, 0};
  STORE_RETURN_IF_ERROR(blocks.Bind(rank_.id)
                            .Bind(kDetailLevel)
                            .Bind(StepColumn(query_.from_step))
                            .Bind(StepColumn(query_.to_step))
                            .ForEach([&](const SqliteRow& row) {
                              const std::optional<BlockDirectory> directory = DecodeDirectory(row.Blob(1), rank_.key);
                              if (!directory) {
                                return DamagedBlock(database_);
                              }
                              const auto first = row.Unsigned<std::uint64_t>(0);
                              for (std::size_t f = 0; f < directory->frames.size(); ++f) {
                                if (WantsStep(directory->frames[f].step)) {
                                  range = {std::min(range.first, first + f), first + f + 1};
                                }
                              }
                              if (range.first >=
                                  range.end) {  // nothing here: the range begins after it, or ends before it
                                const std::uint64_t edge = at_start ? first + directory->frames.size() : first;
                                range = {edge, edge};
                              }
                              return absl::OkStatus();
                            }));
  return range;
}

absl::StatusOr<FrameRange> SeriesScan::Range() {
  STORE_ASSIGN_OR_RETURN(
      FrameRange range, EdgeBlock(database_.Use("SELECT first_frame, directory FROM blocks WHERE rank_id=? AND level=? "
                                                "AND max_step>=? AND min_step<=? ORDER BY first_frame LIMIT 1"),
                                  true));
  STORE_ASSIGN_OR_RETURN(
      const FrameRange last,
      EdgeBlock(database_.Use("SELECT first_frame, directory FROM blocks WHERE rank_id=? AND level=? "
                              "AND max_step>=? AND min_step<=? ORDER BY first_frame DESC LIMIT 1"),
                false));
  range.end = std::max(range.end, last.end);
  std::uint64_t next = rank_.blocked_frames;
  STORE_RETURN_IF_ERROR(database_.Use("SELECT step FROM pending_frames WHERE rank_id=? ORDER BY sequence")
                            .Bind(rank_.id)
                            .ForEach([&](const SqliteRow& row) {
                              const std::int64_t step = row.Int(0);
                              if (step >= StepColumn(query_.from_step) && step <= StepColumn(query_.to_step)) {
                                range = {std::min(range.first, next), next + 1};
                              }
                              ++next;
                              return absl::OkStatus();
                            }));
  return range.first < range.end ? range : FrameRange{};
}

absl::Status SeriesScan::DetailOfBlock(const SqliteRow& row, const FrameRange& range, const OnPoint& on_point) {
  const auto first = row.Unsigned<std::uint64_t>(1);
  const std::optional<BlockDirectory> directory = DecodeDirectory(row.Blob(2), rank_.key);
  if (!directory) {
    return DamagedBlock(database_);
  }
  const auto visit = [&](std::uint32_t site, std::size_t f, float value) {
    const std::uint64_t step = directory->frames[f].step;
    if (first + f >= range.first && first + f < range.end && WantsStep(step)) {
      on_point(site, first + f, step, value);
    }
  };
  for (std::size_t f = 0; directory->unsorted && f < directory->frames.size(); ++f) {
    for (const Sample& sample : directory->frames[f].samples) {
      if (WantsSite(sample.site) && sample.Has(query_.statistic)) {
        visit(sample.site, f, sample.Get(query_.statistic));
      }
    }
  }
  std::vector<bool> wanted(directory->columns.size());
  for (std::size_t c = 0; c < wanted.size(); ++c) {
    wanted[c] = WantsSite(directory->columns[c].site);
  }
  for (const Place& place : PlacesOf(query_.statistic)) {
    bool any = false;
    for (std::size_t c = 0; c < wanted.size() && !any; ++c) {
      any = wanted[c] && directory->columns[c].kind == place.kind;
    }
    if (!any) {
      continue;
    }
    STORE_ASSIGN_OR_RETURN(const Bytes section, ReadSection(database_, row.Int(0), place.kind, place.statistic));
    const bool sound = DecodeStatistic(*directory, place.kind, place.statistic, section,
                                       [&](std::size_t c, std::size_t f, float value) {
                                         if (wanted[c]) {
                                           visit(directory->columns[c].site, f, value);
                                         }
                                       });
    if (!sound) {
      return DamagedBlock(database_);
    }
  }
  return absl::OkStatus();
}

absl::Status SeriesScan::Detail(const FrameRange& range, const OnPoint& on_point) {
  STORE_RETURN_IF_ERROR(
      database_
          .Use("SELECT id, first_frame, directory FROM blocks WHERE rank_id=? AND level=? AND first_frame<? "
               "AND first_frame+frames>? AND max_step>=? AND min_step<=? ORDER BY first_frame")
          .Bind(rank_.id)
          .Bind(kDetailLevel)
          .Bind(range.end)
          .Bind(range.first)
          .Bind(StepColumn(query_.from_step))
          .Bind(StepColumn(query_.to_step))
          .ForEach([&](const SqliteRow& row) { return DetailOfBlock(row, range, on_point); }));
  if (range.end <= rank_.blocked_frames) {
    return absl::OkStatus();
  }
  std::uint64_t next = rank_.blocked_frames;
  return database_.Use("SELECT data FROM pending_frames WHERE rank_id=? ORDER BY sequence")
      .Bind(rank_.id)
      .ForEach([&](const SqliteRow& row) {
        const std::optional<StepFrame> frame = DecodeFrame(row.Blob(0), rank_.key);
        if (!frame) {
          return DamagedBlock(database_);
        }
        const std::uint64_t ordinal = next++;
        if (ordinal < range.first || ordinal >= range.end || !WantsStep(frame->step)) {
          return absl::OkStatus();
        }
        for (const Sample& sample : frame->samples) {
          if (WantsSite(sample.site) && sample.Has(query_.statistic)) {
            on_point(sample.site, ordinal, frame->step, sample.Get(query_.statistic));
          }
        }
        return absl::OkStatus();
      });
}

absl::Status SeriesScan::RolledBlock(const SqliteRow& row, std::uint32_t level, const OnCell& on_cell,
                                     std::vector<FrameRange>& finer) {
  const auto first = row.Unsigned<std::uint64_t>(1);
  const std::optional<Rollup> rollup = DecodeRollupDirectory(row.Blob(3));
  if (!rollup) {
    return DamagedBlock(database_);
  }
  std::vector<bool> inside(rollup->buckets.size());
  for (std::size_t b = 0; b < inside.size(); ++b) {
    const RollupBucket& bucket = rollup->buckets[b];
    inside[b] = WantsStep(bucket.min_step) && WantsStep(bucket.max_step);
    const bool outside = bucket.max_step < query_.from_step || bucket.min_step > query_.to_step;
    if (!inside[b] && !outside) {
      AddRange(finer, {first + b * level, first + (b + 1) * level});
    }
  }
  for (const Place& place : PlacesOf(query_.statistic)) {
    STORE_ASSIGN_OR_RETURN(const Bytes section, ReadSection(database_, row.Int(0), place.kind, place.statistic));
    const bool sound =
        DecodeRollupSection(*rollup, place.kind, section, [&](std::size_t c, std::size_t b, const RollupCell& cell) {
          if (inside[b] && WantsSite(rollup->columns[c].site)) {
            on_cell(rollup->columns[c].site, first + b * level, cell);
          }
        });
    if (!sound) {
      return DamagedBlock(database_);
    }
  }
  return absl::OkStatus();
}

absl::Status SeriesScan::Rolled(std::size_t level_index, const FrameRange& range, const OnPoint& on_point,
                                const OnCell& on_cell) {
  const std::uint32_t level = kRollupLevels[level_index];
  std::vector<FrameRange> finer;
  std::uint64_t covered = range.first;
  STORE_RETURN_IF_ERROR(database_
                            .Use("SELECT id, first_frame, frames, directory FROM blocks WHERE rank_id=? AND level=? "
                                 "AND first_frame+frames>? AND first_frame<? ORDER BY first_frame")
                            .Bind(rank_.id)
                            .Bind(level)
                            .Bind(range.first)
                            .Bind(range.end)
                            .ForEach([&](const SqliteRow& row) {
                              const auto first = row.Unsigned<std::uint64_t>(1);
                              AddRange(finer, {covered, std::max(covered, first)});
                              covered = first + row.Unsigned<std::uint64_t>(2);
                              return RolledBlock(row, level, on_cell, finer);
                            }));
  AddRange(finer, {covered, std::max(covered, range.end)});
  for (const FrameRange& part : finer) {
    STORE_RETURN_IF_ERROR(level_index == 0 ? Detail(part, on_point) : Rolled(level_index - 1, part, on_point, on_cell));
  }
  return absl::OkStatus();
}

}  // namespace neuraldbg::store
