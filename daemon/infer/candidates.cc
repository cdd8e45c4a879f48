#include "daemon/infer/candidates.h"

#include <algorithm>
#include <cmath>

#include "daemon/infer/chain.h"
#include "daemon/infer/mechanism.h"

namespace neuraldbg {
namespace {

using namespace threshold;

constexpr std::size_t kMaxCauses = 8;     // per incident; more of them help nobody
constexpr double kLossInputChange = 1.5;  // log2: a loss whose inputs moved by more is a symptom of them
constexpr double kBatchSigmas = 5.0;      // of the input's own spread
constexpr double kFallbackEvidence = 0.5;

class CauseFinder {
 public:
  CauseFinder(const RankDetectors& detectors, std::uint64_t alarm_step)
      : detectors_(detectors),
        mechanism_(detectors),
        alarm_step_(alarm_step),
        suspects_(FindSuspects(detectors, alarm_step)) {}

  std::vector<Cause> Find() {
    // Where nothing passes at the candidate level, weak mechanisms get a second look at half of it.
    for (const double level : {kCandidateLevel, 0.5 * kCandidateLevel}) {
      for (const Suspect& suspect : suspects_) Judge(suspect, level);
      if (found_any_) break;
    }
    Order();
    AddCollapse();
    if (causes_.empty() && !suspects_.empty()) AddFallback(suspects_.front());
    if (causes_.size() > kMaxCauses) causes_.resize(kMaxCauses);
    SplitOverCauses(detectors_, causes_);
    return std::move(causes_);
  }

 private:
  void Order() {
    for (Cause& cause : causes_) cause.faint = Faint(cause);
    std::stable_sort(causes_.begin(), causes_.end(), [](const Cause& a, const Cause& b) {
      const auto rank = [](const Cause& cause) {
        return (cause.fallback ? 4 : 0) + (cause.explained ? 2 : 0) + (cause.faint ? 1 : 0);
      };
      return rank(a) != rank(b) ? rank(a) < rank(b) : Earlier(a, b);
    });
  }

  // What never reached the alarm level by itself does not go before a far larger change of another node's own: the part
  // of that which its inputs account for has been taken off already, so the small one cannot be what is behind it.
  bool Faint(const Cause& cause) const {
    // The sum that orders a loss is far above any healthy one long before its alarm level. (A loss has no change of its
    // own; where the gradient at a sink stands for it, it has.)
    const bool summed = cause.finding.phase == Phase::kLoss && cause.own_change == 0;
    if (cause.finding.score >= 1 || summed) return false;
    return std::any_of(causes_.begin(), causes_.end(), [&](const Cause& other) {
      return other.finding.score >= kDwarfing * cause.finding.score && other.finding.score >= 1 &&
             other.excess >= kDwarfing * cause.excess;
    });
  }

  // Gradients of all parameters shrank behind the backward pass: clipping, scaling, synchronisation.
  void AddCollapse() {
    if (!detectors_.parameters().all_gradients_collapsed()) return;
    Cause cause;
    cause.finding.kind = HypothesisKind::UPDATE_TOO_SMALL;
    cause.finding.step = detectors_.parameters().collapse_step();
    cause.finding.detected = alarm_step_;
    cause.finding.phase = Phase::kGradientSync;
    cause.finding.score = 20;
    cause.finding.note =
        "The gradients of all parameters shrank together although those of the activations did not: something between "
        "backward and the optimizer (clipping, unscaling, averaging) takes them away.";
    cause.excess = 9;
    causes_.insert(causes_.begin(), std::move(cause));
  }

  void Judge(const Suspect& suspect, double level) {
    Cause cause;
    switch (suspect.side) {
      case Side::kForward:
      case Side::kBackward:
        if (!JudgeNode(suspect, level, cause)) return;
        break;
      case Side::kLoss:
        if (LossInputsMoved(suspect)) return;
        cause = mechanism_.Describe(suspect, suspect.tick);
        if (BatchMoved(suspect, cause)) return;
        cause.fallback = !TensorsKnownAt(suspect.step);
        break;
      case Side::kBatch:
      case Side::kUpdate:
        cause = mechanism_.Describe(suspect, suspect.tick);
        break;
    }
    if (suspect.side != Side::kForward && suspect.side != Side::kBackward) {
      cause.excess = suspect.evidence;
      cause.finding.score = suspect.evidence;
    }
    if (suspect.side == Side::kUpdate) {
      const std::uint32_t node = detectors_.graph().parameters()[suspect.index].node;
      cause.explained = mechanism_.GradientExplainsUpdate(node, cause.finding.step);
    }
    cause.finding.detected = alarm_step_;
    Keep(std::move(cause));
  }

  bool JudgeNode(const Suspect& suspect, double level, Cause& cause) {
    const OwnChange own = mechanism_.OwnChangeOf(suspect);
    double evidence = own.evidence;
    const bool sink = suspect.side == Side::kBackward && detectors_.graph().nodes()[suspect.index].sink;
    if (sink) evidence = std::max(evidence, suspect.evidence);
    // At a sink it falls as the loss does; only a fall in one step says that something else is behind it.
    const bool falls = sink && own.change < 0;
    if (falls && (evidence < 1 || Drifts(detectors_.tensors().node(suspect.index).backward_level))) return false;
    if (evidence < level || own.excess < kOwnExcess) return false;
    // Weight update -> forward gain -> backward gain: the change belongs to the earliest pass that shows it.
    Suspect blamed = suspect;
    if (suspect.side == Side::kBackward) {
      const std::uint32_t forward = mechanism_.ForwardChangeBehind(suspect, own);
      if (forward != kNoSite) blamed.side = Side::kForward, blamed.index = forward;
    }
    double change = own.change;
    if (blamed.index != suspect.index || blamed.side != suspect.side) change = mechanism_.GainChange(blamed, own.tick);
    cause = mechanism_.Describe(blamed, own.tick);
    cause.finding.step = suspect.step;
    cause.finding.score = evidence;
    cause.excess = own.excess;
    cause.own_change = change;
    if (blamed.side == Side::kForward) {
      const auto& node = detectors_.tensors().node(blamed.index);
      cause.drift = Drifts(node.forward_level) && Drifts(node.forward_gain) &&
                    mechanism_.LearnsAsUsual(blamed.index, suspect.step);
      BlameUpdate(blamed, own.tick, cause);
    }
    return true;
  }

  void BlameUpdate(const Suspect& forward, std::uint64_t tick, Cause& cause) {
    const UpdateEdge edge = mechanism_.UpdateBehind(forward, tick, std::fabs(cause.own_change));
    if (edge.known && edge.explains) {
      mechanism_.MoveToUpdate(forward.index, edge, cause);
      cause.explained = mechanism_.GradientExplainsUpdate(forward.index, cause.finding.step);
    } else if (!edge.known) {
      cause.pending_node = forward.index;
      cause.pending_until = alarm_step_ + 2ULL * std::max(1U, detectors_.observation().rotation_groups);
    }
  }

  bool LossInputsMoved(const Suspect& suspect) const {
    const TensorSeries& tensors = detectors_.tensors();
    const std::uint64_t tick = tensors.TickShowing(suspect.step);
    for (std::uint32_t i = 0; i < detectors_.graph().node_count(); ++i) {
      if (!detectors_.graph().nodes()[i].sink) continue;
      if (std::fabs(tensors.node(i).forward_level.DeviationOrZero(tick)) > kLossInputChange) return true;
    }
    return false;
  }

  // That the model's tensors did not move is known only if they had a baseline then and were observed since.
  bool TensorsKnownAt(std::uint64_t step) const {
    const TensorSeries& tensors = detectors_.tensors();
    return detectors_.WasWarmAt(step) && tensors.StepOf(tensors.ticks() - 1) >= step;
  }

  // An input that moved at the same step, though below the alarm level, may be all there is to a harder loss (a
  // curriculum): not the labels' fault, and not certain enough to be the data's.
  bool BatchMoved(const Suspect& suspect, Cause cause) {
    const TensorSeries& tensors = detectors_.tensors();
    const std::uint64_t tick = tensors.TickShowing(suspect.step);
    for (std::uint32_t i = 0; i < detectors_.graph().batches().size(); ++i) {
      const Series& batch = tensors.batch(i);
      const double change = std::fabs(batch.DeviationOrZero(tick));
      if (change < kOwnExcess || change < kBatchSigmas * batch.sigma(kLevelSigmaFloor)) continue;
      cause = mechanism_.Describe({Side::kBatch, i, suspect.step, tick, suspect.evidence}, tick);
      cause.finding.score = suspect.evidence;
      cause.finding.detected = alarm_step_;
      cause.finding.equivalents = {"LABEL_ANOMALY", "an intended change of the data (a curriculum)"};
      cause.fallback = true;
      Keep(std::move(cause));
      return true;
    }
    return false;
  }

  // One cause per kind and module: the earliest.
  void Keep(Cause cause) {
    found_any_ = true;
    for (Cause& known : causes_) {
      if (known.finding.kind != cause.finding.kind || known.finding.module != cause.finding.module) continue;
      if (Earlier(cause, known)) known = std::move(cause);
      return;
    }
    causes_.push_back(std::move(cause));
  }

  void AddFallback(const Suspect& suspect) {
    Cause cause = mechanism_.Describe(suspect, suspect.tick);
    cause.finding.detected = alarm_step_;
    cause.finding.score = kFallbackEvidence * suspect.evidence;
    cause.fallback = true;
    cause.drift = suspect.side == Side::kForward && Drifts(detectors_.tensors().node(suspect.index).forward_level);
    causes_.push_back(std::move(cause));
  }

  // Faults are planted in a step; a network that has begun to learn changes over many.
  static bool Drifts(const Series& level) {
    const std::uint64_t newest = level.next_tick() - 1;
    double largest = 0;
    for (std::uint64_t back = 0; back + 1 < Series::kHistory && back < newest; ++back) {
      const float change = level.Value(newest - back) - level.Value(newest - back - 1);
      if (!std::isfinite(change)) return false;
      largest = std::max(largest, std::fabs(static_cast<double>(change)));
    }
    return largest <= kDriftShare * std::fabs(level.DeviationOrZero(newest));
  }

  const RankDetectors& detectors_;
  Mechanism mechanism_;
  std::uint64_t alarm_step_;
  std::vector<Suspect> suspects_;
  std::vector<Cause> causes_;
  bool found_any_ = false;
};

}  // namespace

std::vector<Cause> FindCauses(const RankDetectors& detectors, std::uint64_t alarm_step) {
  return CauseFinder(detectors, alarm_step).Find();
}

bool ResolvePending(const RankDetectors& detectors, Cause& cause) {
  if (cause.pending_node == kNoSite) return false;
  const std::uint64_t step = detectors.observation().step;
  if (step > cause.pending_until) {
    cause.pending_node = kNoSite;
    return false;
  }
  const Mechanism mechanism(detectors);
  const UpdateEdge edge =
      mechanism.LateUpdateBehind(cause.pending_node, cause.finding.step, std::fabs(cause.own_change));
  if (!edge.known) return false;
  const std::uint32_t node = cause.pending_node;
  cause.pending_node = kNoSite;
  if (!edge.explains) return false;
  mechanism.MoveToUpdate(node, edge, cause);
  return true;
}

}  // namespace neuraldbg
