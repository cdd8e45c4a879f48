#include "daemon/detect/update_lost.h"

#include <algorithm>
#include <cmath>

namespace neuraldbg {

using namespace threshold;

namespace {
// The largest gradient is remembered over a rotation: it sinks by one binade in sixteen applied steps unless renewed.
constexpr double kGradientDecay = 1.0 / 16.0;
}  // namespace

void UpdateLostDetector::Observe(const Observation& observation, double largest_rate, DetectorOutput& output) {
  if (!observation.applied) return;
  ++applied_steps_;
  largest_gradient_ -= kGradientDecay;
  for (const ParameterReading& reading : observation.parameters) {
    if (reading.present && std::isfinite(reading.gradient_level)) {
      largest_gradient_ = std::max(largest_gradient_, static_cast<double>(reading.gradient_level));
    }
  }
  bool newly_lost = false;
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    if (observation.parameters[i].present) newly_lost |= ObserveOne(observation, i, largest_rate);
    if (parameters_[i].lost) {
      output.regimes.Propose(observation.graph->parameters()[i].site, Phase::kOptimizer, Regime::kFrozen,
                             Statistic::kChanged, 0, 1, 1);
    }
  }
  if (newly_lost) Tell(observation, output);
}

bool UpdateLostDetector::ObserveOne(const Observation& observation, std::uint32_t index, double largest_rate) {
  const ParameterReading& reading = observation.parameters[index];
  Parameter& state = parameters_[index];
  const double rate = static_cast<double>(observation.learning_rate());
  const double gradient = static_cast<double>(reading.gradient_level);
  // Descent that has arrived: rate times gradient is below half a unit in the last place of a float32 weight.
  const bool arrived = rate > 0 && std::log2(rate) + gradient < static_cast<double>(reading.level) - kLostPrecision;
  const bool live = observation.graph->parameters()[index].requires_grad && std::isfinite(gradient) &&
                    gradient > kLostGradientFloor && gradient > largest_gradient_ - kLostGradientSpan &&
                    rate > kLostRateShare * largest_rate && !arrived;
  const bool unchanged_now = reading.has_changed ? !reading.changed : !(reading.update_level > kLevelFloor);
  // The first still step stands for itself; from then on the fingerprint must not have moved since the last look.
  const bool moved = state.lost_observations > 0 && state.has_bits && reading.has_bits && state.bits != reading.bits;
  if (!live || !unchanged_now || moved) {
    state.lost_steps = state.lost_observations = 0;
    state.lost = false;
  }
  if (live && unchanged_now) {
    const std::uint64_t spanned = state.lost_observations == 0 ? 1 : applied_steps_ - state.applied_at;
    if (state.lost_observations == 0) state.since = observation.step;
    state.lost_steps += static_cast<std::uint32_t>(std::min<std::uint64_t>(spanned, kLostSteps));
    ++state.lost_observations;
  }
  state.has_bits = reading.has_bits;
  state.bits = reading.bits;
  state.applied_at = applied_steps_;
  const bool was_lost = state.lost;
  if (state.lost_steps >= kLostSteps && state.lost_observations >= kLostObservations) state.lost = true;
  return state.lost && !was_lost;
}

// One finding for the optimizer if nearly all trainable parameters stand still, else one per module.
void UpdateLostDetector::Tell(const Observation& observation, DetectorOutput& output) {
  const auto graph = observation.graph->parameters();
  std::uint32_t trainable = 0, lost = 0;
  std::uint64_t since = observation.step;
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    trainable += graph[i].requires_grad ? 1 : 0;
    if (!parameters_[i].lost) continue;
    ++lost;
    since = std::min(since, parameters_[i].since);
  }
  Finding finding;
  finding.kind = HypothesisKind::UPDATE_LOST;
  finding.phase = Phase::kOptimizer;
  finding.detected = observation.step;
  finding.statistic = Statistic::kChanged;
  finding.expected_low = finding.expected_high = 1;
  finding.note = "The optimizer stepped with a gradient and a learning rate, and not one bit of the value changed.";
  if (static_cast<double>(lost) >= kLostAllShare * trainable) {
    if (told_all_) return;
    told_all_ = true;
    finding.step = since;
    finding.note = "The optimizer steps, but hardly any parameter changes: it holds other tensors than the model.";
    output.findings.push_back(std::move(finding));
    return;
  }
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    Parameter& state = parameters_[i];
    if (!state.lost || state.told || told_all_) continue;
    state.told = true;
    const bool module_told = std::any_of(output.findings.begin(), output.findings.end(), [&](const Finding& earlier) {
      return earlier.kind == HypothesisKind::UPDATE_LOST && earlier.module == graph[i].module;
    });
    if (module_told) continue;
    finding.step = state.since;
    finding.site = graph[i].site;
    finding.module = graph[i].module;
    finding.order = static_cast<std::int32_t>(i);
    output.findings.push_back(finding);
  }
}

}  // namespace neuraldbg
