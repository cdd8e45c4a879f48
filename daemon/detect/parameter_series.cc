#include "daemon/detect/parameter_series.h"

#include <algorithm>
#include <cmath>

namespace neuraldbg {
namespace {

using namespace threshold;

// Global shrink of gradients, in log2: together by 2^3, within four samples by 2^2.5 (dev: clipping never reaches 2^2).
constexpr double kCollapse = -3.0, kCollapseDrop = -2.5, kCollapseShare = 0.8;
constexpr double kSmallestRate = 1e-12;

}  // namespace

double ParameterTrack::UpdateEvidence(std::uint64_t tick) const {
  const double relation =
      static_cast<double>(std::min(update_per_rate.Evidence(tick), update_per_gradient.Evidence(tick)));
  return std::min(relation * kGainMinimum / 2.0, static_cast<double>(update_level.Evidence(tick)));
}

bool ParameterTrack::UpdateMatters(std::uint64_t tick) const {
  return static_cast<double>(update_level.Value(tick) - level.Value(tick)) > kUpdateShareLog2;
}

bool ParameterTrack::UpdateHot() const {
  if (ticks == 0) return false;
  int flags = 0;
  for (std::uint64_t back = 0; back < 3 && back < ticks; ++back) {
    const std::uint64_t tick = ticks - 1 - back;
    flags += UpdateEvidence(tick) >= 1 && UpdateMatters(tick) ? 1 : 0;
  }
  return flags >= kPersistFlags || (UpdateEvidence(ticks - 1) >= kSingleEvidence && UpdateMatters(ticks - 1));
}

void ParameterSeries::Observe(const Observation& observation, DetectorOutput& output) {
  hot_ = false;
  for (std::uint32_t i = 0; i < tracks_.size(); ++i) {
    if (observation.parameters[i].present) ObserveOne(observation, i, output);
  }
  JudgeCollapse(observation);
}

void ParameterSeries::ObserveOne(const Observation& observation, std::uint32_t index, DetectorOutput& output) {
  const GraphParameter& info = observation.graph->parameters()[index];
  const ParameterReading& reading = observation.parameters[index];
  ParameterTrack& track = tracks_[index];
  const std::uint64_t tick = track.ticks;
  const bool rotated = observation.rotation_groups > 1;
  const std::uint32_t minimum = rotated ? kMinimumRotated : kMinimumSamples;
  const std::uint32_t delay = std::max(1U, kEntryDelay / observation.rotation_groups);
  const float rate = observation.learning_rate();
  const float log_rate = std::log2(std::fmax(rate, static_cast<float>(kSmallestRate)));
  float gradient_gain = kNoLevel;
  if (info.node != kNoSite) gradient_gain = reading.gradient_level - observation.backward[info.node].level;
  const bool updated = observation.applied && reading.update_level > kLevelFloor && !std::isnan(rate);
  const float per_rate = updated ? reading.update_level - log_rate : kNoLevel;

  track.steps[tick % Series::kHistory] = observation.step;
  track.gradient_level.Observe(SeriesType::kGradientLevel, tick, reading.gradient_level, minimum, delay);
  track.gradient_gain.Observe(SeriesType::kGradientGain, tick, gradient_gain, minimum, delay);
  track.update_level.Observe(SeriesType::kUpdateLevel, tick, reading.update_level, minimum, delay);
  track.update_per_rate.Observe(SeriesType::kUpdatePerRate, tick, per_rate, minimum, delay);
  track.update_per_gradient.Observe(SeriesType::kUpdatePerGradient, tick, per_rate - reading.gradient_level, minimum,
                                    delay);
  track.level.Observe(SeriesType::kParameterLevel, tick, reading.level, minimum, delay);
  ++track.ticks;
  if (!track.UpdateHot()) return;
  hot_ = true;
  const double deviation = track.update_level.DeviationOrZero(tick);
  output.regimes.Propose(info.site, Phase::kOptimizer, deviation > 0 ? Regime::kUpdateLarge : Regime::kUpdateSmall,
                         Statistic::kUpdateRms, static_cast<double>(std::exp2(reading.update_level)),
                         std::exp2(track.update_level.center() - track.update_level.threshold()),
                         std::exp2(track.update_level.center() + track.update_level.threshold()));
}

void ParameterSeries::JudgeCollapse(const Observation& observation) {
  std::uint32_t judged = 0, collapsed = 0;
  std::vector<double> drops;
  for (std::uint32_t i = 0; i < tracks_.size(); ++i) {
    if (!observation.parameters[i].present) continue;
    const ParameterTrack& track = tracks_[i];
    const std::uint64_t tick = track.ticks - 1;
    ++judged;
    if (track.gradient_level.DeviationOrZero(tick) < kCollapse &&
        track.gradient_gain.DeviationOrZero(tick) < kCollapse) {
      ++collapsed;
    }
    if (tick < 4) continue;
    const double drop = static_cast<double>(track.gradient_level.Value(tick) - track.gradient_level.Value(tick - 4));
    if (std::isfinite(drop)) drops.push_back(drop);
  }
  if (judged == 0) return;
  bool now = static_cast<double>(collapsed) > kCollapseShare * static_cast<double>(judged);
  if (now && !collapsed_now_) collapse_step_ = observation.step;
  if (now && !drops.empty() && !collapsed_now_) {
    std::nth_element(drops.begin(), drops.begin() + static_cast<std::ptrdiff_t>(drops.size() / 2), drops.end());
    now = drops[drops.size() / 2] < kCollapseDrop;  // a slow decay is a schedule or a fit, not a fault
  }
  collapsed_before_ = collapsed_now_;
  collapsed_now_ = now;
}

void ParameterSeries::ForgetBaselines() {
  for (ParameterTrack& track : tracks_) {
    for (Series* series : {&track.gradient_level, &track.gradient_gain, &track.update_level, &track.update_per_rate,
                           &track.update_per_gradient, &track.level}) {
      series->ForgetBaseline();
    }
  }
  hot_ = collapsed_now_ = collapsed_before_ = false;
}

}  // namespace neuraldbg
