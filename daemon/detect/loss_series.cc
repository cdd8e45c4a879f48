#include "daemon/detect/loss_series.h"

#include <algorithm>
#include <cmath>

namespace neuraldbg {
namespace {

using namespace threshold;

constexpr double kSmallestLoss = 1.0 / 1024;  // below, the level of a loss says nothing
constexpr double kCusumCap = 60;              // a long excursion must not take as long to forget

}  // namespace

bool LossSeries::fell_below_noise(double value) const { return value < kLossFloorShare * start_; }

void LossSeries::LearnStart(double value) {
  if (ticks_ >= first_.size()) return;
  first_[ticks_] = static_cast<float>(value);
  std::array<float, 5> values = first_;
  const auto count = static_cast<std::ptrdiff_t>(ticks_ + 1);
  const auto median = values.begin() + count / 2;
  std::nth_element(values.begin(), median, values.begin() + count);
  start_ = static_cast<double>(*median);
}

// A loss that was never below zero and is now, at the size it had in all the last steps. One that comes down through
// zero is small before, and one that scatters about zero does not keep to so narrow a band.
bool LossSeries::Negated(double value) const {
  if (negative_ || !std::isfinite(value) || -value <= kSmallestLoss || ticks_ < kLossStart) return false;
  for (std::uint64_t back = 1; back < Series::kHistory; ++back) {
    const double before = static_cast<double>(series_.Value(ticks_ - back));
    if (!std::isfinite(before) || std::fabs(before - std::log2(-value)) > kNegatedWithin) return false;
  }
  return true;
}

void LossSeries::ReportNegation(const Observation& observation, double value, DetectorOutput& output) const {
  Finding finding;
  finding.kind = HypothesisKind::LOSS_DIVERGENCE;
  finding.site = observation.graph->loss_site();
  finding.step = finding.detected = observation.step;
  finding.phase = Phase::kLoss;
  finding.statistic = Statistic::kLoss;
  finding.observed = value;
  finding.expected_low = -value * std::exp2(-kNegatedWithin);
  finding.expected_high = -value * std::exp2(kNegatedWithin);
  finding.note = "The loss has its usual size and the other sign: it was negated.";
  output.findings.push_back(std::move(finding));
}

void LossSeries::Observe(const Observation& observation, DetectorOutput& output) {
  hot_ = false;
  const LossReading& loss = observation.loss;
  if (!loss.present) return;
  const double value = static_cast<double>(loss.value);
  if (Negated(value)) ReportNegation(observation, value, output);
  negative_ |= std::isfinite(loss.value) && value < 0;
  steps_[ticks_ % Series::kHistory] = observation.step;
  if (std::isfinite(loss.value)) LearnStart(value);
  float level = kNoLevel;
  if (std::isfinite(loss.value) && !negative_) level = static_cast<float>(std::log2(std::max(value, kSmallestLoss)));
  series_.Observe(SeriesType::kLoss, ticks_, level, kMinimumSamples, kEntryDelay);
  if (fell_below_noise(value) || ticks_ < kLossStart) series_.Excuse();
  Accumulate(value, observation.step);
  hot_ = series_.Hot() || cusum() >= 1;
  if (series_.Flagged() || cusum() >= 1) {
    output.regimes.Propose(observation.graph->loss_site(), Phase::kLoss, Regime::kShifted, Statistic::kLoss, value,
                           std::exp2(series_.center() - series_.threshold()),
                           std::exp2(series_.center() + series_.threshold()));
  }
  ++ticks_;
}

// Increase only; the start is the step after the sum last stood at zero.
void LossSeries::Accumulate(double value, std::uint64_t step) {
  const double deviation = static_cast<double>(series_.Deviation(ticks_));
  if (restart_) cusum_start_step_ = step;
  if (!std::isfinite(deviation)) {
    cusum_ = 0;
    restart_ = true;
    return;
  }
  const double sigma = std::max(series_.sigma(kLevelSigmaFloor), kCusumSigmaFloor);
  const bool counts = ticks_ >= kCusumStart && !fell_below_noise(value);
  const double z = counts ? std::min(deviation / sigma, kCusumClip) : -kCusumDrift;
  cusum_ = std::max(0.0, std::min(cusum_, kCusumCap) + z - kCusumDrift);
  restart_ = cusum_ == 0;
}

void LossSeries::ForgetBaseline() {
  series_.ForgetBaseline();
  cusum_ = 0;
  restart_ = true;
  hot_ = false;
}

}  // namespace neuraldbg
