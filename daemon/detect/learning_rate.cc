#include "daemon/detect/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace neuraldbg {

using namespace threshold;

void LearningRateDetector::Observe(const Observation& observation, DetectorOutput& output) {
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    const OptimizerReading& reading = observation.optimizers[i];
    if (!reading.present || !std::isfinite(reading.learning_rate)) continue;
    ObserveGroup(observation, i, static_cast<double>(reading.learning_rate), output);
    largest_ = std::max(largest_, static_cast<double>(reading.learning_rate));
  }
}

void LearningRateDetector::ObserveGroup(const Observation& observation, std::uint32_t index, double rate,
                                        DetectorOutput& output) {
  Group& group = groups_[index];
  const std::uint32_t site = observation.graph->optimizers()[index];
  Finding finding;
  finding.site = site;
  finding.phase = Phase::kOptimizer;
  finding.order = -1;  // the rate is an input of every update
  finding.detected = observation.step;
  finding.statistic = Statistic::kLearningRate;
  finding.observed = rate;

  if (group.seen >= kRateSpikeStart && group.largest > 0 && rate > kRateSpike * group.largest) {
    finding.kind = HypothesisKind::LEARNING_RATE_SPIKE;
    finding.step = observation.step;
    finding.expected_high = group.largest;
    finding.note = "The learning rate is more than four times the largest one before.";
    output.regimes.Propose(site, Phase::kOptimizer, Regime::kRateSpike, Statistic::kLearningRate, rate, 0,
                           group.largest);
    output.findings.push_back(finding);
  }
  if (rate != 0) {
    group.zero_run = 0;
    group.zero_told = false;
    group.before_zero = rate;
  } else if (++group.zero_run == 1) {
    group.zero_since = observation.step;
  }
  // A schedule that ends in zero has decayed first; a jump to zero is a mistake, and so is never leaving it.
  const bool decayed = group.before_zero > 0 && group.before_zero <= kRateZeroShare * group.largest;
  if (group.zero_run >= kRateZeroSteps && !decayed) {
    output.regimes.Propose(site, Phase::kOptimizer, Regime::kRateZero, Statistic::kLearningRate, rate, group.largest,
                           group.largest);
    if (!group.zero_told) {
      finding.kind = HypothesisKind::LEARNING_RATE_ZERO;
      finding.step = group.zero_since;
      finding.expected_low = kRateZeroShare * group.largest;
      finding.expected_high = group.largest;
      finding.note = "The learning rate has been exactly zero for five steps without having decayed first.";
      output.findings.push_back(finding);
    }
    group.zero_told = true;
  }
  group.largest = std::max(group.largest, rate);
  ++group.seen;
}

}  // namespace neuraldbg
