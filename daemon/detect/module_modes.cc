#include "daemon/detect/module_modes.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace neuraldbg {
namespace {

// Modules that compute something else in evaluation mode, by a part of their class name; all others do the same in
// both, and their mode says nothing.
constexpr std::array<std::string_view, 9> kModal{"Drop", "BatchNorm", "InstanceNorm",       "RReLU", "Stochastic",
                                                 "LSTM", "GRU",       "MultiheadAttention", "RNN"};

bool DependsOnMode(const GraphNode& node) {
  return std::any_of(kModal.begin(), kModal.end(),
                     [&](std::string_view part) { return node.kind.find(part) != std::string::npos; });
}

bool Contains(std::string_view container, std::string_view module) {
  return container.empty() ||
         (module.starts_with(container) && (module.size() == container.size() || module[container.size()] == '.'));
}

// The outermost module around `node` in which nothing still trains.
std::string_view Outermost(const Observation& observation, std::uint32_t node) {
  const SiteGraph& graph = *observation.graph;
  const std::string_view module = graph.nodes()[node].module;
  for (std::size_t end = 0; end < module.size(); end = std::min(module.find('.', end + 1), module.size())) {
    const std::string_view container = module.substr(0, end);
    bool trains = false;
    for (std::uint32_t other = 0; other < graph.node_count() && !trains; ++other) {
      const TensorReading& reading = observation.forward[other];
      trains =
          reading.present && (reading.flags & kFlagModuleEval) == 0 && Contains(container, graph.nodes()[other].module);
    }
    if (!trains) return container;
  }
  return module;
}

}  // namespace

void ModuleModeDetector::Observe(const Observation& observation, DetectorOutput& output) {
  if (!observation.applied || !observation.tensors_observed) return;
  const SiteGraph& graph = *observation.graph;
  std::uint32_t first = kNoSite, changed = 0;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const TensorReading& reading = observation.forward[i];
    if (!reading.present) continue;
    const Mode mode = (reading.flags & kFlagModuleEval) != 0 ? Mode::kEvaluation : Mode::kTraining;
    if (mode == Mode::kEvaluation && nodes_[i] == Mode::kTraining && DependsOnMode(graph.nodes()[i])) {
      if (first == kNoSite) first = i;
      ++changed;
    }
    nodes_[i] = mode;
  }
  if (first == kNoSite) return;
  output.regimes.Propose(graph.nodes()[first].site, Phase::kForward, Regime::kShifted, Statistic::kNone, 1, 0, 0);
  if (told_) return;
  told_ = true;
  Finding finding;
  finding.kind = HypothesisKind::ACTIVATION_SHIFT;
  finding.phase = Phase::kForward;
  finding.step = finding.detected = observation.step;
  finding.site = graph.nodes()[first].site;
  finding.module = Outermost(observation, first);
  finding.order = -1;  // the mode is set before the pass begins
  finding.observed = changed;
  finding.note = "Of the modules that do something else in evaluation mode, " + std::to_string(changed) +
                 (changed == 1 ? " was" : " were") + " in training mode until the step before and " +
                 (changed == 1 ? "is" : "are") + " in evaluation mode in this one.";
  output.findings.push_back(std::move(finding));
}

}  // namespace neuraldbg
