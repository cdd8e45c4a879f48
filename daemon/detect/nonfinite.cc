#include "daemon/detect/nonfinite.h"

#include <algorithm>

namespace neuraldbg {
namespace {

using namespace threshold;

bool AnyParameterBad(const Observation& observation) {
  return std::any_of(observation.parameters.begin(), observation.parameters.end(),
                     [](const ParameterReading& reading) { return reading.value_nonfinite > 0; });
}

// NaN in a gradient may die on its way (the backward of a ReLU zeroes it). It does harm where it reached a parameter,
// or, for parameters that this step did not observe, the output of the module that owns one.
bool HarmsParameters(const Observation& observation) {
  const SiteGraph& graph = *observation.graph;
  for (std::uint32_t i = 0; i < observation.parameters.size(); ++i) {
    const ParameterReading& reading = observation.parameters[i];
    if (reading.gradient_nonfinite > 0 || reading.value_nonfinite > 0) return true;
    const std::uint32_t node = graph.parameters()[i].node;
    if (!reading.present && graph.parameters()[i].requires_grad && node != kNoSite &&
        observation.backward[node].nonfinite > 0) {
      return true;
    }
  }
  return false;
}

Finding MakeFinding(const Observation& observation, HypothesisKind kind, Phase phase, std::uint32_t site,
                    std::string module, std::string note) {
  Finding finding;
  finding.kind = kind;
  finding.site = site;
  finding.module = std::move(module);
  finding.step = finding.detected = observation.step;
  finding.phase = phase;
  finding.note = std::move(note);
  return finding;
}

}  // namespace

void NonfiniteDetector::Observe(const Observation& observation, DetectorOutput& output) {
  if (!observation.any_nonfinite) {
    for (std::uint32_t i = 0; i < max_abs_.size(); ++i) {
      if (observation.forward[i].max_abs >= 0) max_abs_[i] = observation.forward[i].max_abs;
    }
    if (in_episode_ && ++finite_steps_ >= kMinimumSamples) in_episode_ = false;
    return;
  }
  LearnUsual(observation);
  ProposeRegimes(observation, output);
  if (in_episode_) {
    finite_steps_ = 0;
    return;
  }
  if (FindProducer(observation, output)) {
    in_episode_ = true;
    finite_steps_ = 0;
  }
}

// Benign is what neither a consumer nor the loss nor a parameter was harmed by: -inf in front of a softmax.
void NonfiniteDetector::LearnUsual(const Observation& observation) {
  const SiteGraph& graph = *observation.graph;
  if ((observation.loss.present && !observation.loss.finite) || AnyParameterBad(observation)) return;
  for (std::uint32_t i = 0; i < usual_.size(); ++i) {
    if (!UnusualForward(observation, i)) continue;
    const auto consumers = graph.consumers(i);
    const bool harmed = std::any_of(consumers.begin(), consumers.end(), [&](std::uint32_t consumer) {
      return observation.forward[consumer].nonfinite > 0;
    });
    const bool reaches_loss = graph.nodes()[i].sink && observation.backward[i].nonfinite > 0;
    if (!harmed && !reaches_loss) usual_[i] = 1;
  }
}

void NonfiniteDetector::ProposeRegimes(const Observation& observation, DetectorOutput& output) const {
  const SiteGraph& graph = *observation.graph;
  const auto propose = [&](std::uint32_t site, Phase phase, Statistic statistic, float count) {
    if (count > 0) {
      output.regimes.Propose(site, phase, Regime::kNonfinite, statistic, static_cast<double>(count), 0, 0);
    }
  };
  for (std::uint32_t i = 0; i < observation.batches.size(); ++i) {
    propose(graph.batches()[i], Phase::kData, Statistic::kNan, observation.batches[i].nonfinite);
  }
  for (std::uint32_t i = 0; i < usual_.size(); ++i) {
    if (usual_[i] == 0) {
      propose(graph.nodes()[i].site, Phase::kForward, Statistic::kNan, observation.forward[i].nonfinite);
    }
    if (!observation.applied) continue;  // an AMP step that was skipped did its job
    propose(graph.nodes()[i].gradient_site, Phase::kBackward, Statistic::kNan, observation.backward[i].nonfinite);
  }
  for (std::uint32_t i = 0; i < observation.parameters.size(); ++i) {
    propose(graph.parameters()[i].site, Phase::kParameter, Statistic::kValueNonfinite,
            observation.parameters[i].value_nonfinite);
  }
  if (observation.loss.present && !observation.loss.finite) {
    propose(graph.loss_site(), Phase::kLoss, Statistic::kNonfinite, 1);
  }
}

bool NonfiniteDetector::FindProducer(const Observation& observation, DetectorOutput& output) const {
  const SiteGraph& graph = *observation.graph;
  for (std::uint32_t i = 0; i < observation.batches.size(); ++i) {
    if (observation.batches[i].nonfinite <= 0) continue;
    Finding finding = MakeFinding(observation, HypothesisKind::DATA_NONFINITE, Phase::kData, graph.batches()[i], "",
                                  "The batch itself holds NaN or Inf.");
    finding.statistic = Statistic::kNan;
    finding.observed = static_cast<double>(observation.batches[i].nonfinite);
    output.findings.push_back(std::move(finding));
    return true;
  }
  return FindForward(observation, output) || FindLoss(observation, output) || FindBackward(observation, output) ||
         FindParameter(observation, output);
}

bool NonfiniteDetector::FindForward(const Observation& observation, DetectorOutput& output) const {
  const SiteGraph& graph = *observation.graph;
  const bool loss_bad = observation.loss.present && !observation.loss.finite;
  const bool parameters_bad = AnyParameterBad(observation);
  for (std::uint32_t i = 0; i < usual_.size(); ++i) {
    if (!UnusualForward(observation, i)) continue;
    const auto parents = graph.parents(i);
    if (std::any_of(parents.begin(), parents.end(), [&](std::uint32_t p) { return UnusualForward(observation, p); })) {
      continue;
    }
    const auto consumers = graph.consumers(i);
    const bool travels = std::any_of(consumers.begin(), consumers.end(),
                                     [&](std::uint32_t c) { return observation.forward[c].nonfinite > 0; });
    if (!loss_bad && !travels && !parameters_bad && observation.backward[i].nonfinite <= 0) continue;
    const GraphNode& node = graph.nodes()[i];
    const TensorReading& reading = observation.forward[i];
    const bool overflow = node.dtype == DType::kFloat16 && reading.infinite > 0 &&
                          max_abs_[i] >= static_cast<float>(kHalfPrecisionHeadroom);
    Finding finding =
        MakeFinding(observation, overflow ? HypothesisKind::LOW_PRECISION_OVERFLOW : HypothesisKind::NONFINITE_FORWARD,
                    Phase::kForward, node.site, node.module,
                    overflow ? "float16 output left its range; it had been within a factor of eight of 65504 before."
                             : "Output holds NaN or Inf although every input of the module was finite.");
    finding.order = static_cast<std::int32_t>(i);
    finding.statistic = reading.infinite > 0 ? Statistic::kInf : Statistic::kNan;
    finding.observed = static_cast<double>(reading.infinite > 0 ? reading.infinite : reading.nonfinite);
    // A weight that the optimizer broke between two looks at it shows like this one step later.
    const auto owned = graph.parameters_of(i);
    const bool unseen = std::any_of(owned.begin(), owned.end(), [&](std::uint32_t p) {
      return observation.rotation_groups > 1 && !observation.parameters[p].present;
    });
    if (unseen) finding.equivalents.push_back("NONFINITE_PARAMETER");
    if (!overflow && node.dtype == DType::kFloat16) finding.equivalents.push_back("LOW_PRECISION_OVERFLOW");
    output.findings.push_back(std::move(finding));
    return true;
  }
  return false;
}

bool NonfiniteDetector::FindLoss(const Observation& observation, DetectorOutput& output) const {
  if (!observation.loss.present || observation.loss.finite) return false;
  Finding finding =
      MakeFinding(observation, HypothesisKind::NONFINITE_LOSS, Phase::kLoss, observation.graph->loss_site(), "",
                  "The loss is not finite although the model's outputs are.");
  finding.statistic = Statistic::kLoss;
  finding.observed = static_cast<double>(observation.loss.value);
  if (!observation.tensors_observed) {
    finding.uncertain = true;
    finding.note = "The loss is not finite; the tensors of this step were not observed, so the producer is unknown.";
    finding.equivalents = {"NONFINITE_FORWARD", "DATA_NONFINITE", "NONFINITE_PARAMETER"};
  } else if (observation.loss.label_count <= 0) {
    finding.note = "The loss is not finite because no label counts towards it: all are ignored.";
    finding.equivalents.push_back("LABEL_ANOMALY");
  }
  output.findings.push_back(std::move(finding));
  return true;
}

bool NonfiniteDetector::FindBackward(const Observation& observation, DetectorOutput& output) const {
  if (!observation.applied) return false;  // the scaler saw it and skipped the step
  const SiteGraph& graph = *observation.graph;
  if (!HarmsParameters(observation)) return false;
  for (std::uint32_t reversed = 0; reversed < usual_.size(); ++reversed) {
    const std::uint32_t i = static_cast<std::uint32_t>(usual_.size()) - 1 - reversed;
    if (observation.backward[i].nonfinite <= 0) continue;
    const auto consumers = graph.consumers(i);
    if (std::any_of(consumers.begin(), consumers.end(),
                    [&](std::uint32_t c) { return observation.backward[c].nonfinite > 0; })) {
      continue;
    }
    const GraphNode& node = graph.nodes()[i];
    const bool entry = node.sink && consumers.empty();
    Finding finding = MakeFinding(
        observation, entry ? HypothesisKind::NONFINITE_LOSS : HypothesisKind::NONFINITE_BACKWARD,
        entry ? Phase::kLoss : Phase::kBackward, node.gradient_site,
        entry ? std::string() : graph.nodes()[consumers.empty() ? i : consumers.front()].module,
        entry ? "The gradient is already not finite where it enters the model: the derivative of the loss."
              : "The gradient turned non-finite on its way back through this module; what entered it was finite.");
    finding.order = entry ? 0 : -static_cast<std::int32_t>(i);
    finding.statistic = Statistic::kNan;
    finding.observed = static_cast<double>(observation.backward[i].nonfinite);
    output.findings.push_back(std::move(finding));
    return true;
  }
  return false;
}

bool NonfiniteDetector::FindParameter(const Observation& observation, DetectorOutput& output) const {
  if (!observation.applied) return false;
  const auto parameters = observation.graph->parameters();
  std::uint32_t worst = kNoSite, gradient = kNoSite;
  for (std::uint32_t i = 0; i < parameters.size(); ++i) {
    const ParameterReading& reading = observation.parameters[i];
    if (reading.value_nonfinite <= 0) continue;
    if (reading.gradient_nonfinite > 0 && gradient == kNoSite) gradient = i;
    if (worst == kNoSite || reading.value_nonfinite > observation.parameters[worst].value_nonfinite) worst = i;
  }
  if (worst == kNoSite) return false;
  const bool by_gradient = gradient != kNoSite;
  const std::uint32_t index = by_gradient ? gradient : worst;
  Finding finding = MakeFinding(
      observation, by_gradient ? HypothesisKind::NONFINITE_BACKWARD : HypothesisKind::NONFINITE_PARAMETER,
      by_gradient ? Phase::kGradientSync : Phase::kOptimizer, parameters[index].site, parameters[index].module,
      by_gradient ? "The parameter's gradient is not finite although the gradients of activations are."
                  : "The optimizer wrote NaN or Inf from finite gradients.");
  if (!observation.tensors_observed) {
    finding.uncertain = true;
    finding.note = "A parameter or its gradient is not finite; the tensors of this step were not observed.";
    finding.equivalents = {by_gradient ? "NONFINITE_PARAMETER" : "NONFINITE_BACKWARD", "NONFINITE_FORWARD"};
  }
  finding.order = static_cast<std::int32_t>(index);
  finding.statistic = by_gradient ? Statistic::kGradientNonfinite : Statistic::kValueNonfinite;
  finding.observed = static_cast<double>(by_gradient ? observation.parameters[index].gradient_nonfinite
                                                     : observation.parameters[index].value_nonfinite);
  output.findings.push_back(std::move(finding));
  return true;
}

}  // namespace neuraldbg
