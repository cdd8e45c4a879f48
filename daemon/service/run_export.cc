#include "daemon/service/run_export.h"

#include <utility>
#include <vector>

#include "daemon/infer/run_engine.h"

namespace neuraldbg {
namespace {

// The store keeps what a rank that died did last in the state of the engine alone.
class Completed final : public RunSink {
 public:
  Completed(RunSink& to, const RunEngine& engine) : to_(to), engine_(engine) {}

  absl::Status OnRun(const StoredRun& run) override { return to_.OnRun(run); }
  absl::Status OnRank(RecordedRank rank) override {
    if (rank.rank.state == RankState::kDied) rank.last_places = engine_.LastPlaces(rank.rank.key.rank);
    ++counts.ranks;
    counts.records += rank.rank.records_received;
    return to_.OnRank(std::move(rank));
  }
  absl::Status OnTransition(Transition transition) override { return to_.OnTransition(std::move(transition)); }
  absl::Status OnFrame(StepFrame frame) override {
    ++counts.frames;
    return to_.OnFrame(std::move(frame));
  }
  absl::Status OnDiagnosis(Diagnosis diagnosis) override { return to_.OnDiagnosis(std::move(diagnosis)); }

  ExportedRun counts;

 private:
  RunSink& to_;
  const RunEngine& engine_;
};

}  // namespace

absl::StatusOr<ExportedRun> ExportRun(StoreReader& reader, const StoredRun& run, const std::string& path,
                                      PortableRunWriter::Existing existing) {
  const absl::StatusOr<std::vector<std::byte>> snapshot = reader.EngineSnapshot(run.id);
  if (!snapshot.ok()) return snapshot.status();
  RunEngine engine;
  // One of another release is not read; the file then lacks the last places, and nothing else.
  if (!snapshot->empty()) engine.Restore(*snapshot);
  absl::StatusOr<std::unique_ptr<PortableRunWriter>> writer = PortableRunWriter::Create(path, existing);
  if (!writer.ok()) return writer.status();
  Completed sink(**writer, engine);
  if (absl::Status status = reader.ReadRun(run.id, sink); !status.ok()) return status;
  if (absl::Status status = (*writer)->Finish(); !status.ok()) return status;
  sink.counts.bytes = (*writer)->bytes_written();
  return sink.counts;
}

}  // namespace neuraldbg
