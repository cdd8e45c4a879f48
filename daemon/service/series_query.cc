#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/service/convert.h"
#include "daemon/service/paging.h"
#include "daemon/service/query.h"
#include "daemon/service/run_topology.h"

namespace neuraldbg {
namespace {

// A response of so many points is about 2 MiB on the wire, half of what a gRPC client accepts by default.
constexpr std::size_t kPointsPerPage = 250'000;
// Sites read from the store before the size of the response is looked at again.
constexpr std::size_t kSitesPerRead = 16;
constexpr std::uint32_t kColumnsDefault = 200;
constexpr std::uint32_t kColumnsMax = 1000;

// What a person means by "the series of this site".
Statistic MainStatistic(RecordKind kind) {
  switch (kind) {
    case RecordKind::kTensor:
    case RecordKind::kBatch:
    case RecordKind::kParameter:
      return Statistic::kRms;
    case RecordKind::kOptimizer:
      return Statistic::kLearningRate;
    case RecordKind::kLoss:
      return Statistic::kLoss;
    case RecordKind::kStep:
      return Statistic::kDurationSeconds;
    case RecordKind::kPhases:
      return Statistic::kForwardSeconds;
    case RecordKind::kAttention:
      return Statistic::kLogitMax;
    case RecordKind::kRouter:
      return Statistic::kLoadMax;
    case RecordKind::kNone:
      break;
  }
  return Statistic::kNone;
}

struct Target {
  std::uint32_t rank = 0;
  const SiteEntry* site = nullptr;
  Statistic statistic = Statistic::kNone;
};

absl::StatusOr<std::optional<Statistic>> ParseStatistic(const std::string& name) {
  if (name.empty()) return std::optional<Statistic>();
  const std::optional<Statistic> statistic = StatisticFromName(name);
  if (statistic && *statistic != Statistic::kNone) return statistic;
  return absl::InvalidArgumentError(absl::StrCat("statistic: there is no statistic '", name, "'."));
}

// Sites of one rank that `wanted` names (all if it is empty) and that have the statistic; names found are erased from
// `unmatched`.
void SelectSites(const Topology& topology, std::uint32_t rank, const std::set<std::string>& wanted,
                 std::optional<Statistic> statistic, std::set<std::string>& unmatched, std::vector<Target>& targets) {
  for (const std::size_t index : SitesInStepOrder(topology.sites)) {
    const SiteEntry& site = topology.sites[index];
    const bool by_site = wanted.contains(site.name), by_module = !site.module.empty() && wanted.contains(site.module);
    if (!wanted.empty() && !by_site && !by_module) continue;
    if (by_site) unmatched.erase(site.name);
    if (by_module) unmatched.erase(site.module);
    const RecordKind kind = KindOfRole(site.role);
    const Statistic chosen = statistic.value_or(MainStatistic(kind));
    if (StatisticIndex(kind, chosen) < kMaxStatistics) targets.push_back({rank, &site, chosen});
  }
}

// The targets of a query in the order in which they are answered: by rank, then in the order of the training step.
absl::StatusOr<std::vector<Target>> SelectTargets(const StoredRun& run, RunTopology& topology,
                                                  const v1::QuerySeriesRequest& request) {
  const absl::StatusOr<std::optional<Statistic>> statistic = ParseStatistic(request.statistic());
  if (!statistic.ok()) return statistic.status();
  if (request.has_from_step() && request.has_to_step() && request.from_step() > request.to_step()) {
    return absl::InvalidArgumentError("from_step: is behind to_step.");
  }
  if (request.has_rank() && !topology.HasRank(request.rank())) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: run '", run.display_name, "' has no rank ", request.rank(), "."));
  }
  const std::set<std::string> wanted(request.sites().begin(), request.sites().end());
  std::set<std::string> unmatched = wanted;
  std::vector<Target> targets;
  std::optional<std::uint32_t> last_rank;
  for (const StoredRank& rank : topology.ranks()) {
    if (last_rank == rank.key.rank || (request.has_rank() && rank.key.rank != request.rank())) continue;
    last_rank = rank.key.rank;
    const StoredRank* newest = topology.Newest(rank.key.rank);
    SelectSites(topology.Of(newest->key), rank.key.rank, wanted, *statistic, unmatched, targets);
  }
  if (!unmatched.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sites: run '", run.display_name, "' has no site or module '", *unmatched.begin(), "'."));
  }
  return targets;
}

SeriesQuery StoreQuery(const StoredRun& run, const Target& target, std::uint64_t from, std::uint64_t to) {
  SeriesQuery query;
  query.run_id = run.id;
  query.rank = target.rank;
  query.statistic = target.statistic;
  query.from_step = from;
  query.to_step = to;
  return query;
}

// Reads targets [begin, end), which may have different ranks and statistics, into the response in their order.
absl::StatusOr<std::size_t> ReadTargets(StoreReader& reader, const StoredRun& run,
                                        const v1::QuerySeriesRequest& request, const std::vector<Target>& targets,
                                        std::size_t begin, std::size_t end, v1::QuerySeriesResponse& response) {
  const std::uint64_t from = request.has_from_step() ? request.from_step() : 0;
  const std::uint64_t to = request.has_to_step() ? request.to_step() : std::numeric_limits<std::uint64_t>::max();
  std::map<std::pair<std::uint32_t, Statistic>, SeriesQuery> queries;
  for (std::size_t i = begin; i < end; ++i) {
    const auto key = std::pair(targets[i].rank, targets[i].statistic);
    SeriesQuery& query = queries.try_emplace(key, StoreQuery(run, targets[i], from, to)).first->second;
    query.max_points = request.max_points();
    query.sites.push_back(targets[i].site->id);
  }
  std::map<std::tuple<std::uint32_t, Statistic, std::uint32_t>, Series> found;
  for (const auto& [key, query] : queries) {
    absl::StatusOr<std::vector<Series>> series = reader.QuerySeries(query);
    if (!series.ok()) return series.status();
    for (Series& one : *series) found[std::tuple(key.first, key.second, one.site)] = std::move(one);
  }
  std::size_t points = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const auto series = found.find(std::tuple(targets[i].rank, targets[i].statistic, targets[i].site->id));
    if (series == found.end() || series->second.points.empty()) continue;
    points += series->second.points.size();
    *response.add_series() = ToProto(series->second, *targets[i].site, targets[i].statistic);
  }
  return points;
}

// Folds points into cells of equal width: the picture shows extremes, since an outlier is what one looks for.
v1::HeatmapRow ToRow(const SiteEntry& site, const Series& series, std::uint64_t first, std::uint64_t width,
                     std::uint32_t columns) {
  v1::HeatmapRow row;
  row.set_site(site.name);
  row.set_module(site.module);
  row.set_phase(ToProto(site.phase));
  for (std::uint32_t column = 0; column < columns; ++column) row.add_cells();
  for (const SeriesPoint& point : series.points) {
    const std::uint64_t column = (point.step - first) / width;
    if (point.step < first || column >= columns) continue;
    v1::HeatmapCell* cell = row.mutable_cells(static_cast<int>(column));
    cell->set_present(true);
    if (!std::isfinite(point.value)) {
      cell->set_nonfinite(true);
    } else if (std::abs(point.value) >= std::abs(cell->value())) {
      cell->set_value(point.value);
    }
  }
  return row;
}

}  // namespace

absl::StatusOr<v1::QuerySeriesResponse> QuerySeries(StoreReader& reader, const Caller& caller,
                                                    const v1::QuerySeriesRequest& request) {
  const absl::StatusOr<std::uint64_t> offset = ParsePageToken(request.page_token());
  if (!offset.ok()) return offset.status();
  const absl::StatusOr<StoredRun> run = ResolveRun(reader, caller, request.run());
  if (!run.ok()) return run.status();
  absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, *run);
  if (!topology.ok()) return topology.status();
  const absl::StatusOr<std::vector<Target>> targets = SelectTargets(*run, *topology, request);
  if (!targets.ok()) return targets.status();
  v1::QuerySeriesResponse response;
  std::size_t next = static_cast<std::size_t>(std::min<std::uint64_t>(*offset, targets->size()));
  for (std::size_t points = 0; next < targets->size() && points < kPointsPerPage;) {
    const std::size_t end = std::min(next + kSitesPerRead, targets->size());
    const absl::StatusOr<std::size_t> read = ReadTargets(reader, *run, request, *targets, next, end, response);
    if (!read.ok()) return read.status();
    points += *read;
    next = end;
  }
  if (next < targets->size()) response.set_next_page_token(absl::StrCat(next));
  return response;
}

absl::StatusOr<v1::HeatmapResponse> Heatmap(StoreReader& reader, const Caller& caller,
                                            const v1::HeatmapRequest& request) {
  const absl::StatusOr<StoredRun> run = ResolveRun(reader, caller, request.run());
  if (!run.ok()) return run.status();
  absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, *run);
  if (!topology.ok()) return topology.status();
  v1::QuerySeriesRequest select;
  select.set_statistic(request.statistic().empty() ? "rms" : request.statistic());
  if (const StoredRank* lowest = topology->Newest(-1)) select.set_rank(lowest->key.rank);
  if (request.has_rank()) select.set_rank(request.rank());
  const absl::StatusOr<std::vector<Target>> targets = SelectTargets(*run, *topology, select);
  if (!targets.ok()) return targets.status();

  const std::uint64_t from = request.has_from_step() ? request.from_step() : 0;
  const std::uint64_t to = std::min<std::uint64_t>(
      request.has_to_step() ? request.to_step() : std::numeric_limits<std::uint32_t>::max(), run->last_step);
  if (from > to) return absl::InvalidArgumentError("from_step: is behind to_step or the last step of the run.");
  const std::uint64_t steps = to - from + 1;
  const std::uint32_t asked = request.columns() == 0 ? kColumnsDefault : std::min(request.columns(), kColumnsMax);
  const std::uint64_t width = (steps + asked - 1) / asked;
  const auto columns = static_cast<std::uint32_t>((steps + width - 1) / width);

  v1::HeatmapResponse response;
  for (std::uint32_t column = 0; column < columns; ++column) response.add_steps(ToStep(from + column * width));
  for (const Target& target : *targets) {
    SeriesQuery query = StoreQuery(*run, target, from, to);
    query.sites = {target.site->id};
    // Twice as many points as columns: every column gets one whatever the blocks of the roll-up.
    query.max_points = 2 * columns;
    const absl::StatusOr<std::vector<Series>> series = reader.QuerySeries(query);
    if (!series.ok()) return series.status();
    if (series->empty() || series->front().points.empty()) continue;
    *response.add_rows() = ToRow(*target.site, series->front(), from, width, columns);
  }
  return response;
}

}  // namespace neuraldbg
