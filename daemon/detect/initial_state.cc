#include "daemon/detect/initial_state.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace neuraldbg {
namespace {

using namespace threshold;

constexpr double kTooSmallToCount = 1e-9;
constexpr std::size_t kMaxScaleFindings = 2;  // the worst two per family of shapes; more of them name no cause
constexpr std::size_t kMinimumProfile = 7;    // sites; below, "first" and "last" three overlap
constexpr std::size_t kProfileEdge = 3;

bool EndsWith(const std::string& text, const char* suffix) {
  const std::string end(suffix);
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

struct ScaledWeight {
  std::uint32_t parameter = 0;
  double scale = 0;  // log2(rms x sqrt(fan_in)), or log2 rms of a normalisation weight
};

Finding InitFinding(const SiteGraph& graph, std::uint32_t parameter, HypothesisKind kind) {
  Finding finding;
  finding.kind = kind;
  finding.site = graph.parameters()[parameter].site;
  finding.module = graph.parameters()[parameter].module;
  finding.phase = Phase::kOptimizer;
  finding.order = static_cast<std::int32_t>(parameter);
  finding.statistic = Statistic::kRms;
  return finding;
}

// Far outside the usual range and far from the model's other weights of the same family.
void FindOutliers(const SiteGraph& graph, std::vector<ScaledWeight> weights, std::vector<Finding>& out) {
  std::erase_if(weights, [](const ScaledWeight& weight) { return weight.scale <= kInitZero; });
  if (weights.empty()) return;
  std::vector<double> scales;
  for (const ScaledWeight& weight : weights) scales.push_back(weight.scale);
  const bool alone = weights.size() == 1;
  const double median = alone ? 0.0 : Median(scales);
  std::erase_if(weights, [&](const ScaledWeight& weight) {
    if (alone) return weight.scale <= kInitHigh + 1;  // nothing to compare with: only the grossest
    return std::fabs(weight.scale - median) <= kInitOutlier || (weight.scale > kInitLow && weight.scale < kInitHigh);
  });
  std::stable_sort(weights.begin(), weights.end(), [&](const ScaledWeight& a, const ScaledWeight& b) {
    return std::fabs(a.scale - median) > std::fabs(b.scale - median);
  });
  if (weights.size() > kMaxScaleFindings) weights.resize(kMaxScaleFindings);
  for (const ScaledWeight& weight : weights) {
    Finding finding = InitFinding(graph, weight.parameter, HypothesisKind::INIT_SCALE);
    finding.score = 10 * std::fabs(weight.scale - median);
    finding.observed = std::exp2(weight.scale);
    finding.expected_low = std::exp2(std::max(kInitLow, median - kInitOutlier));
    finding.expected_high = std::exp2(std::min(kInitHigh, median + kInitOutlier));
    finding.note = "Before the first update, rms x sqrt(fan-in) of this weight is far from the model's other weights.";
    out.push_back(std::move(finding));
  }
}

}  // namespace

std::vector<Finding> JudgeInitialParameters(const Topology& topology, const SiteGraph& graph) {
  std::vector<Finding> findings;
  if (topology.run.start_step > 0 || topology.run.incarnation > 0) return findings;
  std::vector<ScaledWeight> matrices, vectors;
  for (const ParameterInitEntry& init : topology.parameter_inits) {
    const SiteUse use = graph.use(init.site);
    if (use.kind != SiteUse::Kind::kParameter || init.numel == 0) continue;
    const GraphParameter& parameter = graph.parameters()[use.index];
    const SiteEntry& site = topology.sites[init.site];
    const bool embedding = parameter.node != kNoSite && graph.nodes()[parameter.node].kind.starts_with("Embedding");
    if (!EndsWith(parameter.name, "weight") || embedding) continue;
    const double count = static_cast<double>(init.numel);
    const double rms = std::sqrt(std::max(init.sum_squares, 0.0) / count);
    if (!(rms > 0)) continue;  // zero on purpose: LoRA B, zero gamma
    if (site.shape.size() < 2) {
      vectors.push_back({use.index, std::log2(std::max(rms, kTooSmallToCount))});
      continue;
    }
    const double mean = init.sum / count;
    const double variance = init.sum_squares / count - mean * mean;
    // A single element, or one per unit of a single unit, has nothing to be unlike.
    if (site.shape[0] > 1 && init.numel > 2 && mean != 0 && variance < kSymmetricVariance * mean * mean) {
      Finding finding = InitFinding(graph, use.index, HypothesisKind::INIT_SYMMETRIC);
      finding.observed = std::sqrt(std::max(variance, 0.0));
      finding.expected_low = std::sqrt(kSymmetricVariance) * std::fabs(mean);
      finding.expected_high = std::numeric_limits<double>::infinity();
      finding.note = "All elements of the weight start out (nearly) equal, so its units can only learn the same thing.";
      findings.push_back(std::move(finding));
    }
    const double rows = static_cast<double>(std::max<std::uint64_t>(site.shape[0], 1));
    matrices.push_back({use.index, std::log2(std::max(rms, kTooSmallToCount) * std::sqrt(count / rows))});
  }
  FindOutliers(graph, std::move(matrices), findings);
  FindOutliers(graph, std::move(vectors), findings);
  return findings;
}

void DepthProfileDetector::Observe(const Observation& observation, bool explained, DetectorOutput& output) {
  if (done_ || !observation.tensors_observed) return;
  if (steps_ == 0) first_step_ = observation.step;
  Record(observation);
  if (++steps_ < kProfileSteps) return;
  if (!explained) Judge(observation, output);
  done_ = true;
  nodes_.clear();
  nodes_.shrink_to_fit();
}

void DepthProfileDetector::Record(const Observation& observation) {
  const SiteGraph& graph = *observation.graph;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const float level = observation.backward[i].level;
    double input = 0;
    bool fed = false;
    for (const std::uint32_t consumer : graph.consumers(i)) {
      if (graph.nodes()[consumer].gradient_site == kNoSite) continue;
      input += std::exp2(2.0 * static_cast<double>(observation.backward[consumer].level));
      fed = true;
    }
    nodes_[i].level[steps_] = level;
    nodes_[i].gain[steps_] = fed ? level - static_cast<float>(0.5 * std::log2(input)) : kNoLevel;
  }
}

void DepthProfileDetector::Judge(const Observation& observation, DetectorOutput& output) const {
  const SiteGraph& graph = *observation.graph;
  const auto median_of = [](const std::array<float, kProfileSteps>& values) {
    std::vector<double> finite;
    for (const float value : values) {
      if (std::isfinite(value)) finite.push_back(static_cast<double>(value));
    }
    return finite.empty() ? std::numeric_limits<double>::quiet_NaN() : Median(std::move(finite));
  };
  std::vector<double> levels;
  std::uint32_t smallest = kNoSite, largest = kNoSite;  // gain of an activation, gain of anything
  double smallest_gain = std::numeric_limits<double>::infinity(), largest_gain = -smallest_gain;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const double level = median_of(nodes_[i].level);
    if (!std::isfinite(level)) continue;
    levels.push_back(level);
    const double gain = median_of(nodes_[i].gain);
    for (const std::uint32_t consumer : graph.consumers(i)) {
      if (graph.nodes()[consumer].activation && gain < smallest_gain) smallest_gain = gain, smallest = consumer;
      if (gain > largest_gain) largest_gain = gain, largest = consumer;
    }
  }
  if (levels.size() < kMinimumProfile) return;
  const double first = *std::max_element(levels.begin(), levels.begin() + kProfileEdge);
  const double last = *std::max_element(levels.end() - kProfileEdge, levels.end());
  const bool vanishing = last - first > kProfileSpan, exploding = first - last > kProfileSpan;
  const std::uint32_t node = vanishing ? smallest : exploding ? largest : kNoSite;
  if (node == kNoSite) return;
  Finding finding;
  finding.kind = vanishing ? HypothesisKind::VANISHING_GRADIENT : HypothesisKind::EXPLODING_GRADIENT;
  finding.site = graph.nodes()[node].site;
  finding.module = graph.nodes()[node].module;
  finding.step = first_step_;
  finding.detected = observation.step;
  finding.phase = Phase::kBackward;
  finding.score = std::fabs(last - first);
  finding.statistic = Statistic::kRms;
  finding.observed = std::exp2(first);
  finding.expected_low = std::exp2(last - kProfileSpan);
  finding.expected_high = std::exp2(last + kProfileSpan);
  finding.note =
      vanishing ? "From the first steps on, gradients shrink by more than 2^14 between the last and the first layers."
                : "From the first steps on, gradients grow by more than 2^14 between the last and the first layers.";
  output.findings.push_back(std::move(finding));
}

}  // namespace neuraldbg
