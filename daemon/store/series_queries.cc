// The part of StoreQueries that answers QuerySeries.
#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <optional>

#include "daemon/store/series_scan.h"
#include "daemon/store/status_macros.h"
#include "daemon/store/store_queries.h"

namespace neuraldbg::store {
namespace {

// Points that one stretch of a plot may need: minimum, maximum, first NaN, first infinity.
constexpr std::uint32_t kPointsPerBin = 4;

using PointsBySite = std::map<std::uint32_t, std::vector<SeriesPoint>>;

// As many stretches as fit, with one point to spare for the last value of all.
std::size_t BinsFor(std::uint64_t max_points) {
  return static_cast<std::size_t>(std::max<std::uint64_t>(1, max_points == 0 ? 0 : (max_points - 1) / kPointsPerBin));
}

void EmitCell(const RollupCell& cell, bool last_of_all, std::vector<SeriesPoint>& out) {
  std::vector<SeriesPoint> points;
  if (cell.finite != 0) {
    points.push_back({cell.min_step, cell.min});
    points.push_back({cell.max_step, cell.max});
  }
  if (cell.nan != 0) {
    points.push_back({cell.nan_step, kMissing});
  }
  if (cell.inf != 0) {
    points.push_back({cell.inf_step, cell.inf_value});
  }
  if (last_of_all && !cell.empty()) {
    points.push_back({cell.last_step, cell.last});
  }
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  for (const SeriesPoint& point : points) {
    const bool repeated =
        !out.empty() && out.back().step == point.step &&
        (std::bit_cast<std::uint32_t>(out.back().value) == std::bit_cast<std::uint32_t>(point.value) ||
         (point.value != point.value && out.back().value != out.back().value));
    if (!repeated) {
      out.push_back(point);
    }
  }
}

void EmitBins(const std::vector<RollupCell>& bins, std::vector<SeriesPoint>& out) {
  std::size_t last = 0;
  for (std::size_t i = 0; i < bins.size(); ++i) {
    last = bins[i].empty() ? last : i;
  }
  for (std::size_t i = 0; i < bins.size(); ++i) {
    EmitCell(bins[i], i == last, out);
  }
}

std::vector<SeriesPoint> Reduce(const std::vector<SeriesPoint>& points, std::uint64_t max_points) {
  std::vector<RollupCell> bins(BinsFor(max_points));
  for (std::size_t i = 0; i < points.size(); ++i) {
    bins[i * bins.size() / points.size()].Add(points[i].step, points[i].value);
  }
  std::vector<SeriesPoint> reduced;
  EmitBins(bins, reduced);
  return reduced;
}

absl::Status ScanDetail(SeriesScan& scan, const FrameRange& range, std::uint64_t max_points, PointsBySite& out) {
  PointsBySite found;
  STORE_RETURN_IF_ERROR(scan.Detail(range, [&](std::uint32_t site, std::uint64_t, std::uint64_t step, float value) {
    found[site].push_back({step, value});
  }));
  for (auto& [site, points] : found) {
    if (max_points != 0 && points.size() > max_points) {
      points = Reduce(points, max_points);
    }
    out[site].insert(out[site].end(), points.begin(), points.end());
  }
  return absl::OkStatus();
}

absl::Status ScanRolled(SeriesScan& scan, std::size_t level, const FrameRange& range, std::size_t bin_count,
                        PointsBySite& out) {
  std::map<std::uint32_t, std::vector<RollupCell>> bins;
  const auto bin = [&](std::uint32_t site, std::uint64_t frame) -> RollupCell& {
    std::vector<RollupCell>& of_site = bins[site];
    of_site.resize(bin_count);
    // Clamped: the bucket at an edge may begin before the range.
    const std::uint64_t offset = std::clamp(frame, range.first, range.end - 1) - range.first;
    return of_site[static_cast<std::size_t>(offset * bin_count / range.size())];
  };
  STORE_RETURN_IF_ERROR(scan.Rolled(
      level, range,
      [&](std::uint32_t site, std::uint64_t frame, std::uint64_t step, float value) {
        RollupCell single;
        single.Add(step, value);
        bin(site, frame).Merge(single);
      },
      [&](std::uint32_t site, std::uint64_t frame, const RollupCell& cell) { bin(site, frame).Merge(cell); }));
  for (const auto& [site, cells] : bins) {
    EmitBins(cells, out[site]);
  }
  return absl::OkStatus();
}

// The coarsest level that still has a bucket for every bin; nothing if only full detail has.
std::optional<std::size_t> LevelFor(const FrameRange& range, std::size_t bins) {
  std::optional<std::size_t> level;
  for (std::size_t i = 0; i < kRollupLevels.size() && range.size() / kRollupLevels[i] >= bins; ++i) {
    level = i;
  }
  return level;
}

}  // namespace

absl::StatusOr<std::vector<Series>> StoreQueries::QuerySeries(const SeriesQuery& query) {
  SqliteTransaction snapshot(database_, SqliteTransaction::Kind::kRead);  // frames move into blocks meanwhile
  STORE_RETURN_IF_ERROR(snapshot.begun());
  STORE_ASSIGN_OR_RETURN(std::vector<RankRow> ranks, RanksOf(query.run_id));
  std::erase_if(ranks, [&](const RankRow& row) { return query.rank && *query.rank != row.key.rank; });
  std::vector<FrameRange> ranges;
  std::map<std::uint32_t, std::uint64_t> frames_of_rank;  // over its incarnations, which share max_points
  for (const RankRow& rank : ranks) {
    STORE_ASSIGN_OR_RETURN(const FrameRange range, SeriesScan(database_, query, rank).Range());
    ranges.push_back(range);
    frames_of_rank[rank.key.rank] += range.size();
  }
  std::map<std::pair<std::uint32_t, std::uint32_t>, Series> series;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranges[i].size() == 0) {
      continue;
    }
    SeriesScan scan(database_, query, ranks[i]);
    const std::uint64_t budget =
        query.max_points == 0
            ? 0
            : std::max<std::uint64_t>(1, query.max_points * ranges[i].size() / frames_of_rank[ranks[i].key.rank]);
    const std::optional<std::size_t> level =
        budget == 0 ? std::nullopt : LevelFor(ranges[i], std::max<std::size_t>(BinsFor(budget), 1));
    PointsBySite found;
    STORE_RETURN_IF_ERROR(level ? ScanRolled(scan, *level, ranges[i], BinsFor(budget), found)
                                : ScanDetail(scan, ranges[i], budget, found));
    for (auto& [site, points] : found) {
      Series& one = series[{site, ranks[i].key.rank}];
      one.site = site;
      one.rank = ranks[i].key.rank;
      one.points.insert(one.points.end(), points.begin(), points.end());
    }
  }
  std::vector<Series> result;
  for (auto& [key, one] : series) {
    // A restart from a checkpoint repeats steps: both values are shown, the older incarnation's first.
    std::stable_sort(one.points.begin(), one.points.end(),
                     [](const auto& a, const auto& b) { return a.step < b.step; });
    result.push_back(std::move(one));
  }
  return result;
}

}  // namespace neuraldbg::store
