// Mechanism::Describe: which kind of fault a deviating place is, and how to say so.
#include <algorithm>
#include <cmath>

#include "daemon/infer/mechanism.h"

namespace neuraldbg {
namespace {

using namespace threshold;

constexpr double kDeadRise = 0.4, kSaturatedRise = 0.3;  // shares; half of what the corpus' faults show
// The derivative of a mean-reduced cross-entropy sums to at most 2 in absolute value, whatever the labels are; more
// means that the loss itself was scaled. 5 % are left for rounding.
constexpr double kCrossEntropyBound = 2.1;

void Expect(Finding& finding, const Series& series, std::uint64_t tick, double offset) {
  const double value = static_cast<double>(series.Value(tick));
  const double normal = value - series.DeviationOrZero(tick);
  // The range is the rule's that was broken: a small step that stays lies inside the alarm level.
  const bool alarm = std::fabs(value - normal) >= series.threshold();
  const double limit = alarm ? series.threshold() : series.step_level();
  finding.observed = std::exp2(value + offset);
  finding.expected_low = std::exp2(normal + offset - limit);
  finding.expected_high = std::exp2(normal + offset + limit);
}

void ExpectShare(Finding& finding, const Series& series, std::uint64_t tick) {
  finding.observed = static_cast<double>(series.Value(tick));
  finding.expected_high = finding.observed - series.DeviationOrZero(tick) + kShareMinimum;
}

}  // namespace

Cause Mechanism::Describe(const Suspect& suspect, std::uint64_t tick) const {
  Cause cause;
  cause.finding.step = suspect.step;
  cause.finding.phase = PhaseOf(suspect.side);
  cause.finding.order = OrderOf(suspect.side, suspect.index);
  switch (suspect.side) {
    case Side::kBatch:
      DescribeBatch(suspect.index, tick, cause);
      break;
    case Side::kForward:
      DescribeForward(suspect.index, tick, cause);
      break;
    case Side::kLoss:
      DescribeLoss(cause);
      break;
    case Side::kBackward:
      DescribeBackward(suspect.index, tick, cause);
      break;
    case Side::kUpdate:
      DescribeUpdate(suspect.index, tick, cause);
      break;
  }
  return cause;
}

void Mechanism::DescribeBatch(std::uint32_t index, std::uint64_t tick, Cause& cause) const {
  Finding& finding = cause.finding;
  const TensorSeries& tensors = detectors_.tensors();
  finding.kind = HypothesisKind::DATA_SHIFT;
  finding.site = detectors_.graph().batches()[index];
  finding.statistic = Statistic::kRms;
  const bool integer = detectors_.graph().batch_is_integer(index);
  finding.note = integer ? "The token ids of the batch are spread differently than in all batches before."
                         : "The scale of the model's input left its usual range.";
  if (integer && tensors.batch(index).Evidence(tick) < tensors.batch_zero_share(index).Evidence(tick)) {
    finding.statistic = Statistic::kZero;
    ExpectShare(finding, tensors.batch_zero_share(index), tick);
    return;
  }
  Expect(finding, tensors.batch(index), tick, 0);
}

void Mechanism::DescribeForward(std::uint32_t node, std::uint64_t tick, Cause& cause) const {
  Finding& finding = cause.finding;
  const GraphNode& info = detectors_.graph().nodes()[node];
  const NodeSeries& series = detectors_.tensors().node(node);
  finding.site = info.site;
  finding.module = info.module;
  const bool silent = series.forward_level.Value(tick) <= kLevelFloor;
  const bool functional = info.role != SiteRole::kOutput;
  const double dead = series.dead_share.DeviationOrZero(tick), saturated = series.saturated_share.DeviationOrZero(tick);
  if ((info.activation && (dead > kDeadRise || silent)) || (functional && silent)) {
    finding.kind = HypothesisKind::DEAD_UNITS;
    finding.statistic = Statistic::kDeadUnits;
    finding.note = "Units that were alive give nothing any more, for any sample of the batch.";
    if (dead > 0) {
      ExpectShare(finding, series.dead_share, tick);
    } else {
      finding.statistic = Statistic::kRms;
      Expect(finding, series.forward_level, tick, 0);
    }
    return;
  }
  if (info.squashing && saturated > kSaturatedRise) {
    finding.kind = HypothesisKind::SATURATED_ACTIVATION;
    finding.statistic = Statistic::kSaturated;
    finding.note = "The activation works at its limits, where its derivative is nearly zero.";
    ExpectShare(finding, series.saturated_share, tick);
    return;
  }
  finding.kind = HypothesisKind::ACTIVATION_SHIFT;
  finding.statistic = Statistic::kRms;
  finding.note = "The module answers the same input with an output of another scale than before.";
  const double offset = static_cast<double>(series.forward_level.Value(tick) - series.forward_gain.Value(tick));
  if (std::isfinite(offset) && series.forward_gain.Evidence(tick) > series.forward_level.Evidence(tick)) {
    Expect(finding, series.forward_gain, tick, offset);
  } else {
    Expect(finding, series.forward_level, tick, 0);
  }
  if (functional)
    finding.equivalents.push_back("another operand of that code (in an attention: q, k, or what lies between them)");
}

void Mechanism::DescribeBackward(std::uint32_t node, std::uint64_t tick, Cause& cause) const {
  Finding& finding = cause.finding;
  const SiteGraph& graph = detectors_.graph();
  const GraphNode& info = graph.nodes()[node];
  const auto consumers = graph.consumers(node);
  if (info.sink && consumers.empty()) {
    DescribeLoss(cause);
    finding.phase = Phase::kLoss;
    finding.order = 0;
    return;
  }
  const Series& level = detectors_.tensors().node(node).backward_level;
  const Series& gain = detectors_.tensors().node(node).backward_gain;
  const bool down = level.DeviationOrZero(tick) < 0;
  finding.kind = down ? HypothesisKind::VANISHING_GRADIENT : HypothesisKind::EXPLODING_GRADIENT;
  finding.module = consumers.empty() ? info.module : graph.nodes()[consumers.front()].module;
  finding.site = info.gradient_site;
  finding.statistic = Statistic::kRms;
  finding.note = down ? "On its way back through this module the gradient shrinks far more than before."
                      : "On its way back through this module the gradient grows far more than before.";
  const double absolute = static_cast<double>(detectors_.tensors().AbsoluteBackwardLevel(graph, node, tick));
  const double offset = absolute - static_cast<double>(gain.Value(tick));
  if (std::isfinite(offset) && gain.Evidence(tick) > 0) {
    Expect(finding, gain, tick, offset);
  } else {
    Expect(finding, level, tick, absolute - static_cast<double>(level.Value(tick)));
  }
}

double Mechanism::SumAbsAtSinks() const {
  const Observation& observation = detectors_.observation();
  if (std::isfinite(observation.loss.logit_gradient_sum_abs)) {
    return static_cast<double>(observation.loss.logit_gradient_sum_abs);
  }
  double largest = 0;
  for (const std::uint32_t root : detectors_.graph().gradient_roots()) {
    const TensorReading& reading = observation.backward[root];
    const double sum = static_cast<double>(reading.mean_abs) * static_cast<double>(reading.numel);
    if (std::isfinite(sum)) largest = std::max(largest, sum / static_cast<double>(observation.loss_scale()));
  }
  return largest;
}

void Mechanism::DescribeLoss(Cause& cause) const {
  Finding& finding = cause.finding;
  const LossReading& loss = detectors_.observation().loss;
  const LossSeries& series = detectors_.loss();
  finding.module.clear();
  finding.site = detectors_.graph().loss_site();
  finding.statistic = Statistic::kLoss;
  const bool labels = std::isfinite(loss.label_count) && loss.label_count > 0;
  const bool cross_entropy = loss.kind == LossKind::kCrossEntropy || loss.kind == LossKind::kNegativeLogLikelihood ||
                             (loss.kind == LossKind::kUnknown && labels);
  const bool bounded = SumAbsAtSinks() <= kCrossEntropyBound;
  if (labels && cross_entropy && bounded && loss.reduction != Reduction::kSum) {
    finding.kind = HypothesisKind::LABEL_ANOMALY;
    finding.note =
        "The loss rose while inputs, activations and the bound on its derivative stayed: the labels changed.";
    finding.equivalents = {"DATA_SHIFT"};
  } else {
    finding.kind = HypothesisKind::LOSS_SPIKE;
    finding.note =
        "The loss or its derivative jumped although the model's outputs did not: its scale or reduction changed.";
    if (!cross_entropy) finding.equivalents = {"LABEL_ANOMALY"};
  }
  std::uint64_t at = series.ticks() == 0 ? 0 : series.ticks() - 1;
  while (at > 0 && at + Series::kHistory > series.ticks() && series.StepOf(at) > finding.step) --at;
  if (std::isfinite(series.series().Value(at))) {
    Expect(finding, series.series(), at, 0);
  } else {
    finding.observed = static_cast<double>(loss.value);
  }
}

void Mechanism::DescribeUpdate(std::uint32_t parameter, std::uint64_t tick, Cause& cause) const {
  Finding& finding = cause.finding;
  const ParameterTrack& track = detectors_.parameters().track(parameter);
  const bool up = track.update_level.DeviationOrZero(tick) > 0;
  finding.kind = up ? HypothesisKind::UPDATE_TOO_LARGE : HypothesisKind::UPDATE_TOO_SMALL;
  finding.site = detectors_.graph().parameters()[parameter].site;
  finding.module = detectors_.graph().parameters()[parameter].module;
  finding.statistic = Statistic::kUpdateRms;
  finding.note = up ? "The update is far larger than learning rate and gradient account for."
                    : "The update is far smaller than learning rate and gradient account for.";
  Expect(finding, track.update_level, tick, 0);
}

}  // namespace neuraldbg
