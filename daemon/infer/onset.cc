#include "daemon/infer/onset.h"

#include <algorithm>
#include <cmath>

#include "daemon/detect/thresholds.h"

namespace neuraldbg {

using namespace threshold;

std::optional<Onset> FindOnset(const Series& series, std::uint64_t newest) {
  std::optional<std::uint64_t> alarm;
  for (std::uint64_t back = 0; back < 3 && back <= newest && !alarm; ++back) {
    if (static_cast<double>(series.Evidence(newest - back)) >= kCandidateLevel) alarm = newest - back;
  }
  if (!alarm) return std::nullopt;
  const float reference = series.Deviation(*alarm);
  const std::uint64_t earliest = newest > kLookBack ? newest - kLookBack : 0;
  std::uint64_t tick = *alarm;
  while (tick > earliest) {
    const float deviation = series.Deviation(tick - 1);
    const bool deviates = static_cast<double>(series.Evidence(tick - 1)) >= 0.5 * kCandidateLevel &&
                          deviation * reference > 0 &&
                          std::fabs(deviation) >= static_cast<float>(kOnsetShare) * std::fabs(reference);
    if (!deviates) break;
    --tick;
  }
  double evidence = 0;
  for (std::uint64_t t = tick; t <= newest; ++t) evidence = std::max(evidence, static_cast<double>(series.Evidence(t)));
  return Onset{tick, evidence};
}

}  // namespace neuraldbg
