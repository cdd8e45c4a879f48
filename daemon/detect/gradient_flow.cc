#include "daemon/detect/gradient_flow.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace neuraldbg {
namespace {

using namespace threshold;

constexpr std::uint32_t kUphillSteps = 5;  // dev: momentum keeps a healthy net uphill for at most three
constexpr float kUphillCosine = 0.1F;
constexpr std::uint64_t kFlowStart = 1;  // step 0 has nothing before it

bool HasGradient(float level) { return std::isfinite(level) && level > kLevelFloor; }

Finding MakeFinding(const Observation& observation, HypothesisKind kind, Phase phase, const char* note) {
  Finding finding;
  finding.kind = kind;
  finding.phase = phase;
  finding.step = finding.detected = observation.step;
  finding.note = note;
  return finding;
}

}  // namespace

void GradientFlowDetector::Observe(const Observation& observation, const TensorSeries& tensors,
                                   const ParameterSeries& parameters, bool cut, bool loss_is_noise,
                                   DetectorOutput& output) {
  if (observation.has_step) CheckDirty(observation, parameters, output);
  if (observation.applied && steps_ >= kFlowStart) {
    CheckStarved(observation, tensors, cut, output);
    CheckUphill(observation, loss_is_noise, output);
  }
  if (observation.has_step) CheckScaler(observation, output);
  ++steps_;
}

// Dirty gradients after clean ones: the clearing was lost. Dirty ever since the first step may be a loop that clears
// between forward and backward, so there the gradients themselves have to grow.
void GradientFlowDetector::CheckDirty(const Observation& observation, const ParameterSeries& parameters,
                                      DetectorOutput& output) {
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    if (!observation.parameters[i].present || !std::isnan(parameters_[i].first_gain)) continue;
    const ParameterTrack& track = parameters.track(i);
    parameters_[i].first_gain = track.gradient_gain.Value(track.ticks - 1);
  }
  if (!observation.dirty) {
    if (steps_ >= kFlowStart) dirty_from_start_ = false;
    dirty_run_ = 0;
    return;
  }
  ++dirty_run_;
  if (dirty_from_start_ && (dirty_run_ < kDirtySteps || !GradientsGrow(observation, parameters))) return;
  output.regimes.Propose(observation.graph->step_site(), Phase::kData, Regime::kAccumulating, Statistic::kNone, 1, 0,
                         0);
  if (dirty_told_) return;
  dirty_told_ = true;
  Finding finding = MakeFinding(observation, HypothesisKind::GRADIENT_ACCUMULATING, Phase::kData,
                                "Gradients of the step before were still there at the first forward pass.");
  if (dirty_from_start_) finding.step = observation.step - dirty_run_ + 1;
  finding.order = 1;
  finding.site = observation.graph->step_site();
  finding.observed = 1;
  output.findings.push_back(std::move(finding));
}

bool GradientFlowDetector::GradientsGrow(const Observation& observation, const ParameterSeries& parameters) const {
  std::vector<float> growth;
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    if (!observation.parameters[i].present) continue;
    const ParameterTrack& track = parameters.track(i);
    const float grown = track.gradient_gain.Value(track.ticks - 1) - parameters_[i].first_gain;
    if (std::isfinite(grown)) growth.push_back(grown);
  }
  if (growth.empty()) return false;
  std::nth_element(growth.begin(), growth.begin() + static_cast<std::ptrdiff_t>(growth.size() / 2), growth.end());
  return static_cast<double>(growth[growth.size() / 2]) >= kDirtyGrowth;
}

void GradientFlowDetector::CheckStarved(const Observation& observation, const TensorSeries& tensors, bool cut,
                                        DetectorOutput& output) {
  std::uint32_t found = kNoSite;
  const auto graph = observation.graph->parameters();
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    const ParameterReading& reading = observation.parameters[i];
    Parameter& state = parameters_[i];
    if (!reading.present) continue;
    const bool routed = graph[i].node != kNoSite && tensors.node(graph[i].node).routed;
    const bool nonfinite = reading.gradient_nonfinite > 0;
    if (HasGradient(reading.gradient_level) || nonfinite) {
      state.seen = true;
      state.run = 0;
    } else if (graph[i].requires_grad && !routed) {
      if (state.run == 0) state.since = observation.step;
      // Steps between two observations count only if both of them were without.
      state.run +=
          state.run == 0
              ? 1
              : static_cast<std::uint32_t>(std::min<std::uint64_t>(observation.step - state.last, kNoGradientSteps));
      if (state.run >= kNoGradientSteps && state.seen) {
        output.regimes.Propose(graph[i].site, Phase::kGradientSync, Regime::kNoGradient, Statistic::kGradientRms, 0, 0,
                               0);
        if (found == kNoSite || state.since < parameters_[found].since ||
            (state.since == parameters_[found].since && graph[i].node != kNoSite &&
             (graph[found].node == kNoSite || graph[i].node > graph[found].node))) {
          found = i;
        }
      }
    }
    state.last = observation.step;
  }
  if (found == kNoSite || starved_told_ || cut) return;
  starved_told_ = true;
  Finding finding = MakeFinding(observation, HypothesisKind::NO_GRADIENT, Phase::kGradientSync,
                                "The parameter had a gradient and has had none, or exactly zero, since.");
  finding.step = parameters_[found].since;
  finding.site = graph[found].site;
  finding.module = graph[found].module;
  finding.statistic = Statistic::kGradientRms;
  finding.weak = true;  // a dead unit downstream does this as well
  finding.score = 10;
  output.findings.push_back(std::move(finding));
}

// Weak evidence: weight decay on a memorised net, or momentum after a collapse, point uphill too.
void GradientFlowDetector::CheckUphill(const Observation& observation, bool loss_is_noise, DetectorOutput& output) {
  std::vector<float> cosines;
  for (const ParameterReading& reading : observation.parameters) {
    if (reading.present && std::isfinite(reading.cosine) && HasGradient(reading.gradient_level)) {
      cosines.push_back(reading.cosine);
    }
  }
  if (cosines.empty()) return;
  std::nth_element(cosines.begin(), cosines.begin() + static_cast<std::ptrdiff_t>(cosines.size() / 2), cosines.end());
  const float median = cosines[cosines.size() / 2];
  if (median <= kUphillCosine || observation.learning_rate() == 0 || loss_is_noise) {
    uphill_run_ = 0;
    return;
  }
  if (++uphill_run_ == 1) uphill_since_ = observation.step;
  if (uphill_run_ != kUphillSteps) return;
  Finding finding = MakeFinding(observation, HypothesisKind::LOSS_DIVERGENCE, Phase::kOptimizer,
                                "Updates point up the gradient instead of down.");
  finding.step = uphill_since_;
  finding.weak = true;
  finding.score = 5;
  finding.statistic = Statistic::kGradientDotUpdate;
  finding.observed = static_cast<double>(median);
  finding.expected_low = -1;
  finding.expected_high = 0;
  output.findings.push_back(std::move(finding));
}

void GradientFlowDetector::CheckScaler(const Observation& observation, DetectorOutput& output) {
  constexpr auto kWindow = static_cast<std::uint32_t>(kScalerWindow);
  const bool skipped = observation.found_inf && !observation.applied;
  skipped_bits_ = ((skipped_bits_ << 1) | (skipped ? 1U : 0U)) & ((std::uint64_t{1} << kWindow) - 1);
  skipped_seen_ = std::min(skipped_seen_ + 1, kWindow);
  const int count = std::popcount(skipped_bits_);
  if (skipped_seen_ < kWindow || static_cast<double>(count) <= kScalerShare * kScalerWindow) return;
  output.regimes.Propose(observation.graph->step_site(), Phase::kOptimizer, Regime::kStalled, Statistic::kSkippedTotal,
                         count, 0, kScalerShare * kScalerWindow);
  if (stalled_told_) return;
  stalled_told_ = true;
  Finding finding =
      MakeFinding(observation, HypothesisKind::SCALER_STALLED, Phase::kOptimizer,
                  "The loss scaler keeps finding non-finite gradients and skips more than a quarter of the steps.");
  finding.step =
      observation.step -
      std::min<std::uint64_t>(observation.step, static_cast<std::uint64_t>(std::bit_width(skipped_bits_) - 1));
  finding.statistic = Statistic::kSkippedTotal;
  finding.site = observation.graph->step_site();
  finding.observed = count;
  finding.expected_high = kScalerShare * kScalerWindow;
  // The producer of the non-finite gradients is what keeps the scaler from recovering.
  for (std::uint32_t reversed = 0; reversed < observation.graph->node_count(); ++reversed) {
    const auto i = observation.graph->node_count() - 1 - reversed;
    if (observation.backward[i].nonfinite > 0 || observation.forward[i].nonfinite > 0) {
      finding.module = observation.graph->nodes()[i].module;
      finding.site = observation.graph->nodes()[i].site;
      break;
    }
  }
  output.findings.push_back(std::move(finding));
}

}  // namespace neuraldbg
