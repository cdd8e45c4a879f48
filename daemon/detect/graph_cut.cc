#include "daemon/detect/graph_cut.h"

#include <algorithm>
#include <string_view>

namespace neuraldbg {
namespace {

using namespace threshold;

bool HasGradient(const ParameterReading& reading) {
  return reading.gradient_nonfinite > 0 ||
         (std::isfinite(reading.gradient_level) && reading.gradient_level > kLevelFloor);
}

// The innermost module that contains both.
std::string_view CommonContainer(std::string_view a, std::string_view b) {
  std::size_t end = 0;
  for (std::size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
    const bool a_ends = i == a.size() || a[i] == '.', b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

std::string_view ParentOf(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : module.substr(0, dot);
}

// Where the code between a node and those that read it stands: for functional code its owner, between two modules the
// container that calls them.
std::string_view CodeBehind(const SiteGraph& graph, std::uint32_t node) {
  std::string_view code;
  bool first = true;
  for (const std::uint32_t consumer : graph.consumers(node)) {
    const GraphNode& reader = graph.nodes()[consumer];
    std::string_view own = reader.module;
    if (reader.root_code) own = {};
    if (reader.role == SiteRole::kOutput) own = ParentOf(reader.module);
    code = first ? own : CommonContainer(code, own);
    first = false;
  }
  return code;
}

}  // namespace

void GraphCutDetector::Observe(const Observation& observation, DetectorOutput& output) {
  CheckOutputs(observation, output);
  if (!observation.sharp || !observation.applied || !observation.tensors_observed || observation.shed_level > 0) return;
  FollowGradients(observation);
  CheckSilent(observation, output);
}

void GraphCutDetector::CheckOutputs(const Observation& observation, DetectorOutput& output) {
  std::uint32_t first = kNoSite;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const TensorReading& reading = observation.forward[i];
    if (!reading.present) continue;
    const bool grad_mode = (reading.flags & kFlagGradMode) != 0;
    const bool requires_grad = (reading.flags & kFlagRequiresGrad) != 0;
    if (nodes_[i].had_grad_mode && !grad_mode) continue;  // a pass under no_grad on purpose
    if (nodes_[i].required_grad && !requires_grad && first == kNoSite) first = i;
    nodes_[i].required_grad = requires_grad;
    nodes_[i].had_grad_mode |= grad_mode;
  }
  if (first == kNoSite) return;
  Tell(observation, first, observation.step, observation.graph->nodes()[first].module,
       "The output took part in autograd until the step before and no longer does.", output);
}

void GraphCutDetector::FollowGradients(const Observation& observation) {
  const SiteGraph& graph = *observation.graph;
  const bool any = std::any_of(observation.backward.begin(), observation.backward.end(),
                               [](const TensorReading& reading) { return reading.present; });
  if (!any) return;  // there was no backward pass: nothing is known
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (graph.nodes()[i].gradient_site == kNoSite || !observation.forward[i].present) continue;
    if (observation.backward[i].present) {
      node.streak = std::min(node.streak + 1, kGradientStreak);
      node.silent_steps = 0;
      node.starved = false;
    } else if (node.streak < kGradientStreak) {
      node.streak = 0;  // this one comes and goes: a loss that is not taken in every step, say
    } else {
      if (node.silent_steps == 0) node.silent_since = observation.step;
      node.silent_steps = std::min(node.silent_steps + 1, kCutSteps);
      for (const std::uint32_t parameter : graph.parameters_of(i)) {
        const ParameterReading& reading = observation.parameters[parameter];
        node.starved |= reading.present && !HasGradient(reading);
      }
    }
  }
}

void GraphCutDetector::CheckSilent(const Observation& observation, DetectorOutput& output) {
  if (told_) return;
  const SiteGraph& graph = *observation.graph;
  // The last node without a gradient in front of nodes that have one, and whether a parameter at or before it bears it
  // out: those of one cut fell silent in the same step.
  std::uint32_t last = kNoSite;
  bool starved = false;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].silent_steps < kCutSteps) continue;
    if (last != kNoSite && nodes_[i].silent_since > nodes_[last].silent_since) continue;
    const auto readers = graph.consumers(i);
    const bool frontier = std::any_of(readers.begin(), readers.end(), [&](std::uint32_t reader) {
      return nodes_[reader].silent_steps == 0 && observation.backward[reader].present;
    });
    starved |= nodes_[i].starved;
    if (frontier) last = i;
  }
  if (last == kNoSite || !starved) return;
  const std::string& own = graph.nodes()[last].module;
  const std::string_view code = CodeBehind(graph, last);
  Tell(observation, last, nodes_[last].silent_since, code.empty() ? own : std::string(code),
       "Gradients end here since: what reads this output gets one, this output and the parameters before it get none.",
       output);
}

void GraphCutDetector::Tell(const Observation& observation, std::uint32_t node, std::uint64_t since, std::string module,
                            const char* note, DetectorOutput& output) {
  const GraphNode& place = observation.graph->nodes()[node];
  output.regimes.Propose(place.site, Phase::kForward, Regime::kNoGradient, Statistic::kNone, 0, 1, 1);
  if (told_) return;
  told_ = true;
  Finding finding;
  finding.kind = HypothesisKind::NO_GRADIENT;
  finding.phase = Phase::kForward;
  finding.step = since;
  finding.detected = observation.step;
  finding.site = place.site;
  finding.module = std::move(module);
  finding.order = static_cast<std::int32_t>(node);
  finding.note = note;
  output.findings.push_back(std::move(finding));
}

}  // namespace neuraldbg
