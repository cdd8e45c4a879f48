#include "daemon/infer/confidence.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace neuraldbg {
namespace {

constexpr std::size_t kFeatures = 10;
// Fitted offline on development recordings; docs/inference.md names the set, the fit and its measured quality.
constexpr std::array<double, kFeatures> kWeights{3.91, -0.01, -0.01, 0.42, 0.71, -0.50, -2.57, 0.33, 1.14, -1.27};
constexpr double kSmallest = 0.05, kLogCap = 4.0, kGapCap = 5.0, kRivalCap = 4.0;
constexpr double kFallbackCap = 0.45;  // a fallback is an admission, so it stays below what makes a FAULT
constexpr std::uint64_t kEarlySteps = 60;

std::array<double, kFeatures> FeaturesOf(const Cause& cause, std::span<const Cause> others) {
  const Finding& finding = cause.finding;
  double gap = kGapCap, runner_up = kSmallest;
  double rivals = 0;
  for (const Cause& other : others) {
    if (other.finding.kind == finding.kind && other.finding.module == finding.module) continue;
    const double later = other.finding.step > finding.step ? static_cast<double>(other.finding.step - finding.step) : 0;
    gap = std::min(gap, later + (other.finding.phase != finding.phase ? 0.5 : 0));
    if (!other.exact) runner_up = std::max(runner_up, other.finding.score);
    rivals += 1;
  }
  const double strong = cause.strong() ? 1 : 0, statistical = 1 - strong;
  const double score = std::max(finding.score, kSmallest);
  return {1.0,
          strong,
          statistical * std::min(std::log2(score), kLogCap),
          statistical * std::min(std::log2(std::max(cause.excess, kSmallest)), kLogCap),
          statistical * gap / kGapCap,
          statistical * std::min(std::log2(score / runner_up), kLogCap),
          cause.fallback ? 1.0 : 0.0,
          finding.step < kEarlySteps ? statistical : 0.0,
          std::min(rivals, kRivalCap) / kRivalCap,
          cause.exact && finding.weak ? 1.0 : 0.0};
}

}  // namespace

double ConfidenceOf(const Cause& cause, std::span<const Cause> others) {
  const std::array<double, kFeatures> features = FeaturesOf(cause, others);
  double sum = 0;
  for (std::size_t i = 0; i < kFeatures; ++i) sum += kWeights[i] * features[i];
  const double probability = 1.0 / (1.0 + std::exp(-sum));
  return cause.fallback ? std::min(probability, kFallbackCap) : probability;
}

}  // namespace neuraldbg
