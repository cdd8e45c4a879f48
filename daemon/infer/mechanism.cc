#include "daemon/infer/mechanism.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace neuraldbg {
namespace {

using namespace threshold;

constexpr double kShareWeight = 4.0;          // a dead share of 0.25 counts like a factor of two
constexpr double kExplainsHalf = 0.5;         // a change in another pass explains from half the size on
constexpr double kUpdateNearlyWeight = -1.0;  // log2 update / weight: half the weight explains any gain

double Energy(double level) { return std::exp2(2 * level); }

// Newest sample of a parameter with from <= step < before.
std::optional<std::uint64_t> SampleIn(const ParameterTrack& track, std::uint64_t from, std::uint64_t before) {
  for (std::uint64_t back = 1; back <= Series::kHistory && back <= track.ticks; ++back) {
    const std::uint64_t tick = track.ticks - back;
    if (track.StepOf(tick) >= before) continue;
    if (track.StepOf(tick) < from) return std::nullopt;
    return tick;
  }
  return std::nullopt;
}

struct ParameterChange {
  bool known = false;
  double level = 0;       // |change of log2 rms| over the update
  double update = -1000;  // log2 update / weight before
};

ParameterChange ChangeBetween(const ParameterTrack& track, std::uint64_t update_from, std::uint64_t update_before) {
  ParameterChange change;
  const auto base = SampleIn(track, 0, update_from);
  const auto after = SampleIn(track, update_from, update_before);
  if (!base || !after) return change;
  change.known = true;
  const double before = static_cast<double>(track.level.Value(*base));
  const double level = std::fabs(static_cast<double>(track.level.Value(*after)) - before);
  if (std::isfinite(level)) change.level = level;
  const double update = static_cast<double>(track.update_level.Value(*after)) - before;
  if (std::isfinite(update)) change.update = update;
  return change;
}

}  // namespace

double Mechanism::InputChange(bool backward, std::uint32_t node, std::uint64_t tick) const {
  const SiteGraph& graph = detectors_.graph();
  const TensorSeries& tensors = detectors_.tensors();
  double now = 0, before = 0;
  const auto add = [&](double level, double change) {
    if (!std::isfinite(level)) return;
    now += Energy(level);
    before += Energy(level - change);
  };
  if (!backward && graph.nodes()[node].reads_batch) {
    double change = 0;
    for (std::uint32_t i = 0; i < graph.batches().size(); ++i) {
      const double deviation = graph.batch_is_integer(i) ? 0 : tensors.batch(i).DeviationOrZero(tick);
      if (std::fabs(deviation) > std::fabs(change)) change = deviation;
    }
    add(static_cast<double>(tensors.BatchLevel(graph, tick)), change);
  }
  for (const std::uint32_t input : backward ? graph.consumers(node) : graph.parents(node)) {
    const Series& series = backward ? tensors.node(input).backward_level : tensors.node(input).forward_level;
    const float level = backward ? tensors.AbsoluteBackwardLevel(graph, input, tick) : series.Value(tick);
    add(static_cast<double>(level), series.DeviationOrZero(tick));
  }
  return now > 0 && before > 0 ? 0.5 * std::log2(now / before) : 0;
}

double Mechanism::GainChange(const Suspect& suspect, std::uint64_t tick) const {
  const NodeSeries& node = detectors_.tensors().node(suspect.index);
  return (suspect.side == Side::kBackward ? node.backward_gain : node.forward_gain).DeviationOrZero(tick);
}

OwnChange Mechanism::OwnChangeOf(const Suspect& suspect) const {
  const SiteGraph& graph = detectors_.graph();
  const NodeSeries& node = detectors_.tensors().node(suspect.index);
  const GraphNode& info = graph.nodes()[suspect.index];
  const bool backward = suspect.side == Side::kBackward;
  const auto evidence_at = [&](std::uint64_t tick) {
    if (backward) return static_cast<double>(node.backward_gain.Evidence(tick));
    return static_cast<double>(std::max(
        {node.forward_gain.Evidence(tick), node.dead_share.Evidence(tick), node.saturated_share.Evidence(tick)}));
  };
  OwnChange own;
  own.tick = suspect.tick;
  const std::uint64_t newest = detectors_.tensors().ticks() - 1;
  for (std::uint64_t tick = suspect.tick; tick <= std::min(newest, suspect.tick + kOnsetHorizon); ++tick) {
    if (evidence_at(tick) > evidence_at(own.tick)) own.tick = tick;
  }
  own.evidence = evidence_at(own.tick);
  const bool source = backward ? info.sink : graph.parents(suspect.index).empty() && !info.reads_batch;
  own.change = GainChange(suspect, own.tick);
  double inputs = std::fabs(InputChange(backward, suspect.index, own.tick));
  if (source) {
    own.change = (backward ? node.backward_level : node.forward_level).DeviationOrZero(own.tick);
    inputs = 0;
  }
  double strength = std::fabs(own.change);
  if (!backward) {
    const double shares =
        std::max({node.dead_share.DeviationOrZero(own.tick), node.saturated_share.DeviationOrZero(own.tick), 0.0});
    strength = std::max(strength, shares * kShareWeight);
  }
  own.excess = strength - inputs;
  return own;
}

std::uint32_t Mechanism::ForwardChangeBehind(const Suspect& backward, const OwnChange& own) const {
  const SiteGraph& graph = detectors_.graph();
  const TensorSeries& tensors = detectors_.tensors();
  const auto consumers = graph.consumers(backward.index);
  std::vector<std::uint32_t> forward(consumers.begin(), consumers.end());
  for (const std::uint32_t consumer : consumers) {
    if (graph.nodes()[consumer].role == SiteRole::kOutput) continue;  // a module's own forward has one factor
    for (const std::uint32_t other : graph.parents(consumer)) {
      if (other != backward.index) forward.push_back(other);
    }
  }
  std::sort(forward.begin(), forward.end());
  std::uint32_t best = kNoSite;
  double largest = 0;
  for (const std::uint32_t node : forward) {
    const double change = std::fabs(tensors.node(node).forward_gain.DeviationOrZero(own.tick));
    if (best == kNoSite || change > largest) best = node, largest = change;
  }
  if (best == kNoSite || largest < kExplainsHalf * std::fabs(own.change)) return kNoSite;
  if (!(tensors.node(best).forward_level.Value(own.tick) > kLevelFloor)) return kNoSite;
  return largest > std::fabs(InputChange(false, best, own.tick)) ? best : kNoSite;
}

UpdateEdge Mechanism::UpdateBehind(const Suspect& forward, std::uint64_t tick, double change) const {
  const TensorSeries& tensors = detectors_.tensors();
  // The forward pass before the onset was still normal, so the update came between the two.
  const std::uint64_t from = forward.tick > 0 ? tensors.StepOf(forward.tick - 1) : 0;
  const std::uint64_t before = tensors.StepOf(tick);
  UpdateEdge edge;
  edge.known = true;
  edge.step = forward.step > 0 ? forward.step - 1 : 0;
  for (const std::uint32_t parameter : detectors_.graph().parameters_of(forward.index)) {
    const ParameterChange seen = ChangeBetween(detectors_.parameters().track(parameter), from, before);
    edge.known &= seen.known;
    if (!seen.known || change <= 0) continue;
    if (seen.level >= kExplainsHalf * change || seen.update > kUpdateNearlyWeight) {
      edge.explains = edge.known = true;
      edge.site = detectors_.graph().parameters()[parameter].site;
      return edge;
    }
  }
  return edge;
}

UpdateEdge Mechanism::LateUpdateBehind(std::uint32_t node, std::uint64_t onset_step, double change) const {
  UpdateEdge edge;
  edge.known = true;
  edge.step = onset_step > 0 ? onset_step - 1 : 0;
  for (const std::uint32_t parameter : detectors_.graph().parameters_of(node)) {
    const ParameterTrack& track = detectors_.parameters().track(parameter);
    const ParameterChange seen = ChangeBetween(track, edge.step, detectors_.observation().step + 1);
    edge.known &= seen.known;
    if (!seen.known || change <= 0 || seen.level < kExplainsHalf * change) continue;
    edge.explains = edge.known = true;
    edge.site = detectors_.graph().parameters()[parameter].site;
    return edge;
  }
  return edge;
}

bool Mechanism::LearnsAsUsual(std::uint32_t node, std::uint64_t onset_step) const {
  const TensorSeries& tensors = detectors_.tensors();
  const std::uint64_t newest = tensors.ticks() - 1;
  const std::uint64_t oldest = tensors.StepOf(newest - std::min<std::uint64_t>(newest, Series::kHistory - 1));
  const auto steps = static_cast<double>(tensors.StepOf(newest) - oldest);
  double largest = 0;
  for (const std::uint32_t parameter : detectors_.graph().parameters_of(node)) {
    const ParameterTrack& track = detectors_.parameters().track(parameter);
    if (track.ticks == 0) return false;
    const std::uint64_t seen = track.ticks - 1;
    if (track.StepOf(seen) < onset_step || !std::isfinite(track.update_level.Deviation(seen))) return false;
    if (track.UpdateEvidence(seen) >= kCandidateLevel) return false;
    const double ratio =
        static_cast<double>(track.update_level.Value(seen)) - static_cast<double>(track.level.Value(seen));
    if (std::isfinite(ratio)) largest = std::max(largest, steps * std::exp2(ratio));
  }
  return largest >= kLearnedShare;
}

void Mechanism::MoveToUpdate(std::uint32_t node, const UpdateEdge& edge, Cause& cause) const {
  Finding& finding = cause.finding;
  finding.kind = HypothesisKind::UPDATE_TOO_LARGE;
  finding.step = edge.step;
  finding.phase = Phase::kOptimizer;
  finding.order = static_cast<std::int32_t>(node);
  finding.site = edge.site;
  finding.statistic = Statistic::kRms;
  finding.note = "The module's output changed because its own weight did: the update before was far too large.";
  const SiteUse use = detectors_.graph().use(edge.site);
  if (use.kind != SiteUse::Kind::kParameter) return;
  const ParameterTrack& track = detectors_.parameters().track(use.index);
  const auto base = SampleIn(track, 0, edge.step);
  const auto after = SampleIn(track, edge.step, detectors_.observation().step + 1);
  if (!base || !after) return;
  finding.observed = static_cast<double>(std::exp2(track.level.Value(*after)));
  finding.expected_low = finding.expected_high = static_cast<double>(std::exp2(track.level.Value(*base)));
}

bool Mechanism::GradientExplainsUpdate(std::uint32_t node, std::uint64_t step) const {
  if (node == kNoSite) return false;
  const TensorSeries& tensors = detectors_.tensors();
  const std::uint64_t from = step > 0 ? step - 1 : 0;
  for (std::uint64_t back = 1; back <= Series::kHistory && back <= tensors.ticks(); ++back) {
    const std::uint64_t tick = tensors.ticks() - back;
    const std::uint64_t at = tensors.StepOf(tick);
    if (at < from) break;
    if (static_cast<double>(tensors.node(node).backward_level.Evidence(tick)) < kCandidateLevel) continue;
    for (const std::uint32_t parameter : detectors_.graph().parameters_of(node)) {
      const ParameterTrack& track = detectors_.parameters().track(parameter);
      const auto sample = SampleIn(track, at, at + 1);
      if (sample && static_cast<double>(track.update_per_gradient.Evidence(*sample)) < kCandidateLevel) return true;
    }
  }
  return false;
}

}  // namespace neuraldbg
