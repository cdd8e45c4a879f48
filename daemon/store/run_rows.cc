#include "daemon/store/run_rows.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>
#include <vector>

#include "daemon/store/block_rows.h"
#include "daemon/store/diagnosis_rows.h"
#include "daemon/store/frame_codec.h"
#include "daemon/store/status_macros.h"

namespace neuraldbg::store {
namespace {

constexpr std::uint32_t kTransitionsPerPage = 1024;
constexpr std::uint32_t kPendingPerPage = 64;

// The frames of one rank in their order, a block or a page of waiting frames at a time.
class FrameCursor {
 public:
  FrameCursor(SqliteConnection& database, const RankRow& rank) : database_(database), rank_(rank) {}

  // The next frame; null at the end.
  absl::StatusOr<NumberedFrame*> Peek() {
    while (frames_.empty() && !ended_) STORE_RETURN_IF_ERROR(Load());
    return frames_.empty() ? nullptr : &frames_.front();
  }
  void Pop() { frames_.pop_front(); }

 private:
  absl::Status Load() {
    if (read_ < rank_.blocked_frames) return LoadBlock();
    STORE_RETURN_IF_ERROR(database_
                              .Use("SELECT sequence, data FROM pending_frames WHERE rank_id=? AND sequence>? "
                                   "ORDER BY sequence LIMIT ?")
                              .Bind(rank_.id)
                              .Bind(last_sequence_)
                              .Bind(kPendingPerPage)
                              .ForEach([&](const SqliteRow& row) {
                                std::optional<StepFrame> frame = DecodeFrame(row.Blob(1), rank_.key);
                                if (!frame) return DamagedBlock(database_);
                                last_sequence_ = row.Unsigned<std::uint64_t>(0);
                                frames_.push_back({last_sequence_, *std::move(frame)});
                                return absl::OkStatus();
                              }));
    ended_ = frames_.empty();
    return absl::OkStatus();
  }

  absl::Status LoadBlock() {
    STORE_RETURN_IF_ERROR(database_
                              .Use("SELECT id, directory FROM blocks WHERE rank_id=? AND level=? AND first_frame>=? "
                                   "ORDER BY first_frame LIMIT 1")
                              .Bind(rank_.id)
                              .Bind(kDetailLevel)
                              .Bind(read_)
                              .ForEach([&](const SqliteRow& row) {
                                STORE_ASSIGN_OR_RETURN(std::vector<NumberedFrame> frames,
                                                       ReadBlockFrames(database_, row.Int(0), row.Blob(1), rank_.key));
                                std::move(frames.begin(), frames.end(), std::back_inserter(frames_));
                                return absl::OkStatus();
                              }));
    if (frames_.empty()) return DamagedBlock(database_);
    read_ += frames_.size();
    last_sequence_ = frames_.back().sequence;
    return absl::OkStatus();
  }

  SqliteConnection& database_;
  const RankRow rank_;
  std::deque<NumberedFrame> frames_;
  std::uint64_t read_ = 0, last_sequence_ = 0;
  bool ended_ = false;
};

absl::Status ReadRanks(StoreQueries& queries, const std::vector<RankRow>& rows, std::uint64_t run_id, RunSink& sink) {
  STORE_ASSIGN_OR_RETURN(const std::vector<StoredRank> ranks, queries.ListRanks(run_id));
  for (std::size_t i = 0; i < rows.size(); ++i) {  // both in the order of rank and incarnation
    RecordedRank recorded;
    recorded.rank = ranks[i];
    recorded.frames = rows[i].frames;
    STORE_ASSIGN_OR_RETURN(recorded.manifest, queries.Manifest(rows[i]));
    STORE_ASSIGN_OR_RETURN(recorded.site_totals, queries.SiteTotals(rows[i].key));
    STORE_RETURN_IF_ERROR(sink.OnRank(std::move(recorded)));
  }
  return absl::OkStatus();
}

absl::Status ReadAllTransitions(SqliteConnection& database, std::uint64_t run_id, RunSink& sink) {
  for (std::uint64_t after = 0;;) {
    STORE_ASSIGN_OR_RETURN(std::vector<Transition> page, ReadTransitions(database, run_id, after, kTransitionsPerPage));
    if (page.empty()) return absl::OkStatus();
    after = page.back().id;
    for (Transition& transition : page) STORE_RETURN_IF_ERROR(sink.OnTransition(std::move(transition)));
  }
}

absl::Status ReadAllFrames(SqliteConnection& database, const std::vector<RankRow>& rows, RunSink& sink) {
  std::deque<FrameCursor> cursors;
  for (const RankRow& row : rows) cursors.emplace_back(database, row);
  for (;;) {
    FrameCursor* next = nullptr;
    NumberedFrame* first = nullptr;
    for (FrameCursor& cursor : cursors) {
      STORE_ASSIGN_OR_RETURN(NumberedFrame * frame, cursor.Peek());
      if (frame == nullptr || (first != nullptr && first->sequence < frame->sequence)) continue;
      first = frame;
      next = &cursor;
    }
    if (next == nullptr) return absl::OkStatus();
    STORE_RETURN_IF_ERROR(sink.OnFrame(std::move(first->frame)));
    next->Pop();
  }
}

}  // namespace

absl::Status ReadRun(SqliteConnection& database, StoreQueries& queries, std::uint64_t run_id, RunSink& sink) {
  SqliteTransaction snapshot(database, SqliteTransaction::Kind::kRead);
  STORE_RETURN_IF_ERROR(snapshot.begun());
  STORE_ASSIGN_OR_RETURN(const StoredRun run, queries.GetRun(run_id));
  STORE_ASSIGN_OR_RETURN(const std::vector<RankRow> rows, queries.RanksOf(run_id));
  STORE_RETURN_IF_ERROR(sink.OnRun(run));
  STORE_RETURN_IF_ERROR(ReadRanks(queries, rows, run_id, sink));
  STORE_RETURN_IF_ERROR(ReadAllTransitions(database, run_id, sink));
  STORE_RETURN_IF_ERROR(ReadAllFrames(database, rows, sink));
  absl::StatusOr<Diagnosis> diagnosis = ReadDiagnosis(database, run_id);
  if (absl::IsNotFound(diagnosis.status())) return absl::OkStatus();
  if (!diagnosis.ok()) return diagnosis.status();
  return sink.OnDiagnosis(*std::move(diagnosis));
}

}  // namespace neuraldbg::store
