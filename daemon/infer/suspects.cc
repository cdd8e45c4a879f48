#include "daemon/infer/suspects.h"

#include <algorithm>
#include <tuple>

#include "daemon/infer/onset.h"

namespace neuraldbg {
namespace {

using namespace threshold;

class SuspectFinder {
 public:
  SuspectFinder(const RankDetectors& detectors, std::uint64_t alarm_step)
      : detectors_(detectors), alarm_step_(alarm_step) {}

  std::vector<Suspect> Find() {
    const TensorSeries& tensors = detectors_.tensors();
    if (tensors.ticks() > 0) {
      for (std::uint32_t i = 0; i < detectors_.graph().batches().size(); ++i) {
        AddTensor(Side::kBatch, i, tensors.batch(i));
        AddTensor(Side::kBatch, i, tensors.batch_zero_share(i));
      }
      for (std::uint32_t i = 0; i < detectors_.graph().node_count(); ++i) {
        const NodeSeries& node = tensors.node(i);
        AddTensor(Side::kForward, i, node.forward_level);
        AddTensor(Side::kForward, i, node.forward_gain);
        AddTensor(Side::kForward, i, node.dead_share);
        AddTensor(Side::kForward, i, node.saturated_share);
        AddTensor(Side::kBackward, i, node.backward_level);
        AddTensor(Side::kBackward, i, node.backward_gain);
      }
    }
    AddLoss();
    for (std::uint32_t i = 0; i < detectors_.graph().parameters().size(); ++i) AddUpdate(i);
    std::stable_sort(found_.begin(), found_.end(), [](const Suspect& a, const Suspect& b) {
      return std::tuple(a.step, PhaseOf(a.side), OrderOf(a.side, a.index)) <
             std::tuple(b.step, PhaseOf(b.side), OrderOf(b.side, b.index));
    });
    return std::move(found_);
  }

 private:
  void AddTensor(Side side, std::uint32_t index, const Series& series) {
    const TensorSeries& tensors = detectors_.tensors();
    const std::optional<Onset> onset = FindOnset(series, tensors.ticks() - 1);
    if (onset) found_.push_back({side, index, tensors.StepOf(onset->tick), onset->tick, onset->evidence});
  }

  // The CUSUM knows the start of a shift that no single step shows.
  void AddLoss() {
    const LossSeries& loss = detectors_.loss();
    if (loss.ticks() == 0) return;
    std::optional<Suspect> by_level;
    if (const std::optional<Onset> onset = FindOnset(loss.series(), loss.ticks() - 1)) {
      by_level = Suspect{Side::kLoss, 0, loss.StepOf(onset->tick), onset->tick, onset->evidence};
    }
    if (loss.series().SteppedAndStayed()) {
      const std::uint64_t tick = loss.series().StepTick();
      if (!by_level || loss.StepOf(tick) < by_level->step) {
        const double evidence = loss.series().DeviationOrZero(loss.ticks() - 1) / kLossMinimum;
        by_level = Suspect{Side::kLoss, 0, loss.StepOf(tick), tick, evidence};
      }
    }
    const std::uint64_t start = loss.cusum_start_step();
    // A shift of the loss moves the tensors only as the network unlearns: the sum has stood since long before.
    const bool recent = start + kExplainedLead >= alarm_step_;
    if (loss.cusum() >= kCusumOrdering && recent && !(by_level && by_level->step <= start)) {
      std::uint64_t tick = loss.ticks() - 1;
      while (tick > 0 && tick + Series::kHistory > loss.ticks() && loss.StepOf(tick) > start) --tick;
      by_level = Suspect{Side::kLoss, 0, start, tick, loss.cusum()};
    }
    if (by_level) found_.push_back(*by_level);
  }

  void AddUpdate(std::uint32_t index) {
    const ParameterTrack& track = detectors_.parameters().track(index);
    if (track.ticks == 0) return;
    const std::uint64_t newest = track.ticks - 1;
    const std::uint64_t reach = std::max<std::uint64_t>(2, detectors_.observation().rotation_groups);
    if (track.StepOf(newest) + reach < alarm_step_) return;
    bool found = false, matters = false;
    std::uint64_t tick = newest;
    for (std::uint64_t back = 0; back < 3 && back <= newest; ++back) {
      matters |= track.UpdateMatters(newest - back);
      if (!found && track.UpdateEvidence(newest - back) >= kCandidateLevel) tick = newest - back, found = true;
    }
    if (!found || !matters) return;
    const std::uint64_t earliest = newest > kLookBack ? newest - kLookBack : 0;
    while (tick > earliest && track.UpdateEvidence(tick - 1) >= 0.5 * kCandidateLevel) --tick;
    double evidence = 0;
    for (std::uint64_t t = tick; t <= newest; ++t) evidence = std::max(evidence, track.UpdateEvidence(t));
    found_.push_back({Side::kUpdate, index, track.StepOf(tick), tick, evidence});
  }

  const RankDetectors& detectors_;
  std::uint64_t alarm_step_;
  std::vector<Suspect> found_;
};

}  // namespace

Phase PhaseOf(Side side) {
  switch (side) {
    case Side::kBatch:
      return Phase::kData;
    case Side::kForward:
      return Phase::kForward;
    case Side::kLoss:
      return Phase::kLoss;
    case Side::kBackward:
      return Phase::kBackward;
    case Side::kUpdate:
      break;
  }
  return Phase::kOptimizer;
}

std::int32_t OrderOf(Side side, std::uint32_t index) {
  return side == Side::kBackward ? -static_cast<std::int32_t>(index) : static_cast<std::int32_t>(index);
}

std::vector<Suspect> FindSuspects(const RankDetectors& detectors, std::uint64_t alarm_step) {
  return SuspectFinder(detectors, alarm_step).Find();
}

}  // namespace neuraldbg
