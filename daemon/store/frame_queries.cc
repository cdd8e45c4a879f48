// The part of StoreQueries that reads whole frames, from blocks and from the frames that wait for theirs.
#include <algorithm>
#include <iterator>

#include "daemon/store/block_rows.h"
#include "daemon/store/frame_codec.h"
#include "daemon/store/status_macros.h"
#include "daemon/store/store_queries.h"

namespace neuraldbg::store {
namespace {

// Appends what passes `wanted`.
template <typename Wanted>
absl::Status AppendBlock(SqliteConnection& database, const SqliteRow& row, const RankKey& rank, const Wanted& wanted,
                         std::vector<NumberedFrame>& out) {
  STORE_ASSIGN_OR_RETURN(std::vector<NumberedFrame> frames, ReadBlockFrames(database, row.Int(0), row.Blob(1), rank));
  std::copy_if(std::make_move_iterator(frames.begin()), std::make_move_iterator(frames.end()), std::back_inserter(out),
               wanted);
  return absl::OkStatus();
}

template <typename Wanted>
absl::Status AppendPending(SqliteConnection& database, const SqliteRow& row, const RankKey& rank, const Wanted& wanted,
                           std::vector<NumberedFrame>& out) {
  std::optional<StepFrame> frame = DecodeFrame(row.Blob(1), rank);
  if (!frame) {
    return DamagedBlock(database);
  }
  NumberedFrame numbered{row.Unsigned<std::uint64_t>(0), *std::move(frame)};
  if (wanted(numbered)) {
    out.push_back(std::move(numbered));
  }
  return absl::OkStatus();
}

std::vector<StepFrame> WithoutNumbers(std::vector<NumberedFrame> numbered) {
  std::vector<StepFrame> frames;
  frames.reserve(numbered.size());
  for (NumberedFrame& one : numbered) {
    frames.push_back(std::move(one.frame));
  }
  return frames;
}

}  // namespace

absl::StatusOr<std::vector<StepFrame>> StoreQueries::ReadFrames(const RankKey& key, std::uint64_t from,
                                                                std::uint64_t to) {
  SqliteTransaction snapshot(database_, SqliteTransaction::Kind::kRead);
  STORE_RETURN_IF_ERROR(snapshot.begun());
  STORE_ASSIGN_OR_RETURN(const RankRow rank, FindRank(key));
  std::vector<NumberedFrame> frames;
  const auto wanted = [&](const NumberedFrame& one) { return one.frame.step >= from && one.frame.step <= to; };
  STORE_RETURN_IF_ERROR(
      database_
          .Use("SELECT id, directory FROM blocks WHERE rank_id=? AND level=? AND max_step>=? AND min_step<=? "
               "ORDER BY first_frame")
          .Bind(rank.id)
          .Bind(kDetailLevel)
          .Bind(StepColumn(from))
          .Bind(StepColumn(to))
          .ForEach([&](const SqliteRow& row) { return AppendBlock(database_, row, key, wanted, frames); }));
  STORE_RETURN_IF_ERROR(
      database_
          .Use("SELECT sequence, data FROM pending_frames WHERE rank_id=? AND step BETWEEN ? AND ? "
               "ORDER BY sequence")
          .Bind(rank.id)
          .Bind(StepColumn(from))
          .Bind(StepColumn(to))
          .ForEach([&](const SqliteRow& row) { return AppendPending(database_, row, key, wanted, frames); }));
  return WithoutNumbers(std::move(frames));
}

absl::StatusOr<std::vector<StepFrame>> StoreQueries::FramesSince(std::uint64_t run_id, std::uint64_t frame_sequence) {
  SqliteTransaction snapshot(database_, SqliteTransaction::Kind::kRead);
  STORE_RETURN_IF_ERROR(snapshot.begun());
  STORE_ASSIGN_OR_RETURN(const std::vector<RankRow> ranks, RanksOf(run_id));
  std::vector<NumberedFrame> frames;
  const auto wanted = [&](const NumberedFrame& one) { return one.sequence > frame_sequence; };
  for (const RankRow& rank : ranks) {
    STORE_RETURN_IF_ERROR(
        database_.Use("SELECT id, directory FROM blocks WHERE rank_id=? AND level=? AND last_sequence>?")
            .Bind(rank.id)
            .Bind(kDetailLevel)
            .Bind(frame_sequence)
            .ForEach([&](const SqliteRow& row) { return AppendBlock(database_, row, rank.key, wanted, frames); }));
    STORE_RETURN_IF_ERROR(
        database_.Use("SELECT sequence, data FROM pending_frames WHERE rank_id=? AND sequence>?")
            .Bind(rank.id)
            .Bind(frame_sequence)
            .ForEach([&](const SqliteRow& row) { return AppendPending(database_, row, rank.key, wanted, frames); }));
  }
  std::sort(frames.begin(), frames.end(), [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return WithoutNumbers(std::move(frames));
}

}  // namespace neuraldbg::store
