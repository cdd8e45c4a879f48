// The part of StoreQueries that reads frames and series.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "daemon/store/frame_codec.h"
#include "daemon/store/status_macros.h"
#include "daemon/store/store_queries.h"

namespace neuraldbg::store {

absl::StatusOr<std::vector<StepFrame>> StoreQueries::ReadFrames(const RankKey& key, std::uint64_t from,
                                                                std::uint64_t to) {
  SqliteTransaction snapshot(database_, SqliteTransaction::Kind::kRead);
  STORE_RETURN_IF_ERROR(snapshot.begun());
  STORE_ASSIGN_OR_RETURN(const RankRow rank, FindRank(key));
  std::vector<StepFrame> frames;
  STORE_RETURN_IF_ERROR(
      database_.Use("SELECT data FROM pending_frames WHERE rank_id=? AND step BETWEEN ? AND ? ORDER BY sequence")
          .Bind(rank.id).Bind(StepColumn(from)).Bind(StepColumn(to)).ForEach([&](const SqliteRow& row) {
            std::optional<StepFrame> frame = DecodeFrame(row.Blob(0), key);
            if (!frame) {
              return absl::DataLossError(absl::StrCat(database_.path(), " holds a damaged frame."));
            }
            if (frame->step >= from && frame->step <= to) {
              frames.push_back(*std::move(frame));
            }
            return absl::OkStatus();
          }));
  return frames;
}

absl::StatusOr<std::vector<StepFrame>> StoreQueries::FramesSince(std::uint64_t run_id, std::uint64_t frame_sequence) {
  SqliteTransaction snapshot(database_, SqliteTransaction::Kind::kRead);
  STORE_RETURN_IF_ERROR(snapshot.begun());
  STORE_ASSIGN_OR_RETURN(const std::vector<RankRow> ranks, RanksOf(run_id));
  std::vector<std::pair<std::uint64_t, StepFrame>> numbered;
  for (const RankRow& rank : ranks) {
    STORE_RETURN_IF_ERROR(
        database_.Use("SELECT sequence, data FROM pending_frames WHERE rank_id=? AND sequence>?")
            .Bind(rank.id).Bind(frame_sequence).ForEach([&](const SqliteRow& row) {
              std::optional<StepFrame> frame = DecodeFrame(row.Blob(1), rank.key);
              if (!frame) {
                return absl::DataLossError(absl::StrCat(database_.path(), " holds a damaged frame."));
              }
              numbered.emplace_back(row.Unsigned<std::uint64_t>(0), *std::move(frame));
              return absl::OkStatus();
            }));
  }
  std::sort(numbered.begin(), numbered.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<StepFrame> frames;
  frames.reserve(numbered.size());
  for (auto& [sequence, frame] : numbered) {
    frames.push_back(std::move(frame));
  }
  return frames;
}

absl::StatusOr<std::vector<Series>> StoreQueries::QuerySeries(const SeriesQuery& query) {
  STORE_ASSIGN_OR_RETURN(const std::vector<RankRow> ranks, RanksOf(query.run_id));
  std::map<std::pair<std::uint32_t, std::uint32_t>, Series> series;
  for (const RankRow& rank : ranks) {
    if (query.rank && *query.rank != rank.key.rank) {
      continue;
    }
    STORE_ASSIGN_OR_RETURN(const std::vector<StepFrame> frames, ReadFrames(rank.key, query.from_step, query.to_step));
    for (const StepFrame& frame : frames) {
      for (const Sample& sample : frame.samples) {
        const bool wanted = query.sites.empty() ||
                            std::find(query.sites.begin(), query.sites.end(), sample.site) != query.sites.end();
        if (wanted && sample.Has(query.statistic)) {
          Series& one = series[{sample.site, rank.key.rank}];
          one.site = sample.site;
          one.rank = rank.key.rank;
          one.points.push_back({frame.step, sample.Get(query.statistic)});
        }
      }
    }
  }
  std::vector<Series> result;
  for (auto& [key, one] : series) {
    result.push_back(std::move(one));
  }
  return result;
}

}  // namespace neuraldbg::store
