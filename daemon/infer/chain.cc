#include "daemon/infer/chain.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "daemon/infer/change_split.h"

namespace neuraldbg {
namespace {

using namespace threshold;

constexpr std::size_t kMaxLinks = 6;  // a chain is read by people
constexpr double kShareToShow = 0.05;
constexpr double kChangeToSplit = 0.05;  // log2; below, shares of a change are shares of noise

bool IsNonfinite(HypothesisKind kind) {
  switch (kind) {
    case HypothesisKind::DATA_NONFINITE:
    case HypothesisKind::NONFINITE_FORWARD:
    case HypothesisKind::NONFINITE_LOSS:
    case HypothesisKind::NONFINITE_BACKWARD:
    case HypothesisKind::LOW_PRECISION_OVERFLOW:
      return true;
    default:
      return false;
  }
}

std::string ChangeText(double change) {
  char text[64];
  std::snprintf(text, sizeof text, "changed by a factor of %.3g", std::exp2(change));
  return text;
}

// The node whose change stands for the symptom: what the loss is computed from, or the gradient that moved most.
std::uint32_t SymptomNode(const RankDetectors& detectors, bool backward, std::uint64_t tick) {
  std::uint32_t best = kNoSite;
  double largest = 0;
  for (std::uint32_t i = 0; i < detectors.graph().node_count(); ++i) {
    const NodeSeries& node = detectors.tensors().node(i);
    if (!backward && !detectors.graph().nodes()[i].sink) continue;
    const Series& series = backward ? node.backward_level : node.forward_level;
    const double change = std::fabs(series.DeviationOrZero(tick));
    if (best == kNoSite || change > largest) best = i, largest = change;
  }
  return largest > kChangeToSplit ? best : kNoSite;
}

}  // namespace

std::vector<Link> NonfiniteChain(const RankDetectors& detectors, const Finding& finding) {
  std::vector<Link> chain;
  if (!IsNonfinite(finding.kind)) return chain;
  const SiteGraph& graph = detectors.graph();
  const Observation& observation = detectors.observation();
  chain.push_back({finding.site, finding.step, finding.phase, 1.0, "first non-finite value of the step"});
  const SiteUse use = graph.use(finding.site);
  if (use.kind == SiteUse::Kind::kForward) {
    std::uint32_t node = use.index;
    while (chain.size() + 2 < kMaxLinks) {
      const auto consumers = graph.consumers(node);
      const auto next = std::find_if(consumers.begin(), consumers.end(),
                                     [&](std::uint32_t c) { return observation.forward[c].nonfinite > 0; });
      if (next == consumers.end()) break;
      node = *next;
      chain.push_back(
          {graph.nodes()[node].site, finding.step, Phase::kForward, 0, "reads it and is non-finite itself"});
    }
  }
  if (observation.loss.present && !observation.loss.finite && finding.phase < Phase::kLoss) {
    chain.push_back({graph.loss_site(), finding.step, Phase::kLoss, 0, "the loss is not finite"});
  }
  for (std::uint32_t i = 0; i < observation.parameters.size(); ++i) {
    if (observation.parameters[i].value_nonfinite <= 0) continue;
    chain.push_back({graph.parameters()[i].site, finding.step, Phase::kParameter, 0, "the update made it non-finite"});
    break;
  }
  return chain;
}

void SplitOverCauses(const RankDetectors& detectors, std::vector<Cause>& causes) {
  if (causes.empty() || detectors.tensors().ticks() == 0) return;
  Cause& first = causes.front();
  const SiteGraph& graph = detectors.graph();
  const bool backward = first.finding.phase == Phase::kBackward || first.finding.phase == Phase::kGradientSync;
  const std::uint64_t newest = detectors.tensors().ticks() - 1;
  std::uint64_t tick = detectors.tensors().TickOf(first.finding.step);
  if (tick > newest) tick = newest;
  // An update moves the forward pass of the step after it.
  if (first.finding.phase == Phase::kOptimizer && tick < newest) ++tick;
  const std::uint32_t symptom = SymptomNode(detectors, backward, tick);
  const std::uint64_t step = detectors.tensors().StepOf(tick);
  const Phase phase = backward ? Phase::kBackward : Phase::kForward;
  if (symptom == kNoSite) {
    first.chain.push_back({first.finding.site, first.finding.step, first.finding.phase, 1.0, first.finding.note});
    return;
  }
  const ChangeSplit split = SplitChange(detectors, backward, symptom, tick);
  if (std::fabs(split.total) < kChangeToSplit) return;
  std::vector<std::pair<double, std::uint32_t>> shares;
  for (std::uint32_t i = 0; i < graph.node_count(); ++i) shares.emplace_back(split.contribution[i] / split.total, i);
  for (Cause& cause : causes) {
    if (cause.finding.kind == HypothesisKind::DATA_SHIFT) cause.share = split.batch / split.total;
    for (const auto& [share, node] : shares) {
      const std::uint32_t site = graph.nodes()[node].site, gradient = graph.nodes()[node].gradient_site;
      if (cause.finding.site == site || cause.finding.site == gradient) cause.share = share;
    }
  }
  first.chain.push_back({first.finding.site, first.finding.step, first.finding.phase, first.share, first.finding.note});
  std::stable_sort(shares.begin(), shares.end(),
                   [](const auto& a, const auto& b) { return std::fabs(a.first) > std::fabs(b.first); });
  for (const auto& [share, node] : shares) {
    const std::uint32_t site = backward ? graph.nodes()[node].gradient_site : graph.nodes()[node].site;
    if (first.chain.size() + 1 >= kMaxLinks || std::fabs(share) < kShareToShow) break;
    if (site == first.finding.site || site == kNoSite) continue;
    first.chain.push_back({site, step, phase, share, "changed by itself at the same time"});
  }
  const GraphNode& end = graph.nodes()[symptom];
  const std::uint32_t end_site = backward ? end.gradient_site : end.site;
  if (end_site != first.finding.site) {
    first.chain.push_back({end_site, step, phase, 0, "symptom: " + ChangeText(split.total)});
  }
}

}  // namespace neuraldbg
