#include "daemon/service/run_replay.h"

#include <map>
#include <utility>
#include <vector>

#include "daemon/infer/run_engine.h"
#include "daemon/service/convert.h"
#include "daemon/service/run_topology.h"
#include "daemon/store/portable_run.h"
#include "daemon/store/topology_builder.h"

namespace neuraldbg {
namespace {

// One incarnation of a rank: it starts (topology) before its first frame and ends (fate) behind its last one.
struct Incarnation {
  StoredRank rank;
  std::vector<LastPlace> last_places;
  std::uint64_t frames_left = 0;
  bool started = false, ended = false;
};

class Replay final : public RunSink {
 public:
  absl::Status OnRun(const StoredRun& run) override {
    run_ = run;
    return absl::OkStatus();
  }

  absl::Status OnRank(RecordedRank recorded) override {
    const RankKey key = recorded.rank.key;
    Topology& topology = topologies_[key];
    for (const ManifestEntry& entry : recorded.manifest) store::AddToTopology(entry, topology);
    stored_.push_back(recorded.rank);
    incarnations_[key] = {std::move(recorded.rank), std::move(recorded.last_places), recorded.frames};
    return absl::OkStatus();
  }

  absl::Status OnTransition(Transition) override { return absl::OkStatus(); }  // the engine finds its own

  absl::Status OnFrame(StepFrame frame) override {
    StartThrough(frame.rank);
    Incarnation& incarnation = incarnations_.at(frame.rank);
    engine_.OnFrame(frame);
    if (--incarnation.frames_left == 0) End(incarnation);
    engine_.TakeTransitions();
    return absl::OkStatus();
  }

  absl::Status OnDiagnosis(Diagnosis diagnosis) override {
    recorded_ = std::move(diagnosis);
    return absl::OkStatus();
  }

  ReplayedRun Finish() {
    for (auto& [key, incarnation] : incarnations_) {
      Start(incarnation);
      if (incarnation.frames_left == 0) End(incarnation);
    }
    RunTopology topology(stored_, std::move(topologies_));
    ReplayedRun replayed;
    replayed.diagnosis = ToProto(engine_.Diagnose(), run_, topology);
    if (recorded_) replayed.recorded = ToProto(*recorded_, run_, topology);
    return replayed;
  }

 private:
  // An incarnation without frames came and went before the next one of its rank.
  void StartThrough(const RankKey& key) {
    Incarnation& wanted = incarnations_.at(key);
    if (wanted.started) return;
    for (auto at = incarnations_.lower_bound({key.run_id, key.rank, 0}); at != incarnations_.end(); ++at) {
      Start(at->second);
      if (at->first == key) return;
      if (at->second.frames_left == 0) End(at->second);
    }
  }

  void Start(Incarnation& incarnation) {
    if (std::exchange(incarnation.started, true)) return;
    engine_.SetTopology(incarnation.rank.key, topologies_.at(incarnation.rank.key));
  }

  void End(Incarnation& incarnation) {
    if (std::exchange(incarnation.ended, true) || incarnation.rank.state == RankState::kRunning) return;
    const StoredRank& rank = incarnation.rank;
    engine_.OnRankFate(rank.key, rank.state == RankState::kDied ? RankFate::kDied : RankFate::kFinished, rank.last_step,
                       rank.last_site, incarnation.last_places);
  }

  StoredRun run_;
  std::vector<StoredRank> stored_;
  std::map<RankKey, Topology> topologies_;
  std::map<RankKey, Incarnation> incarnations_;
  RunEngine engine_;
  std::optional<Diagnosis> recorded_;
};

}  // namespace

absl::StatusOr<ReplayedRun> ReplayRun(const std::string& path) {
  Replay replay;
  if (absl::Status status = ReadPortableRun(path, replay); !status.ok()) return status;
  return replay.Finish();
}

}  // namespace neuraldbg
