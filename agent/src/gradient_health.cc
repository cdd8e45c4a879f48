#include "agent/src/gradient_health.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace neuraldbg {

const char* GradientHealthName(GradientHealth health) noexcept {
  switch (health) {
    case GradientHealth::kUnknown:
      return "unknown";
    case GradientHealth::kHealthy:
      return "healthy";
    case GradientHealth::kVanishing:
      return "vanishing";
    case GradientHealth::kExploding:
      return "exploding";
    case GradientHealth::kNonfinite:
      return "nonfinite";
  }
  return "";
}

GradientHealth GradientNormSeries::Observe(double norm) noexcept {
  const bool finite = std::isfinite(norm);
  const float level = finite ? std::max(threshold::kLevelFloor, static_cast<float>(std::log2(std::fabs(norm))))
                             : std::numeric_limits<float>::quiet_NaN();
  const std::uint64_t tick = next_++;
  series_.Observe(SeriesType::kGradientLevel, tick, level, threshold::kMinimumSamples, threshold::kEntryDelay);
  if (!finite) return GradientHealth::kNonfinite;
  if (norm == 0) return GradientHealth::kVanishing;
  if (!std::isfinite(series_.Deviation(tick))) return GradientHealth::kUnknown;
  if (!series_.Flagged()) return GradientHealth::kHealthy;
  return series_.Deviation(tick) < 0 ? GradientHealth::kVanishing : GradientHealth::kExploding;
}

GradientHealth GradientNormSeries::Classify(double norm) const noexcept {
  GradientNormSeries other = *this;
  return other.Observe(norm);
}

}  // namespace neuraldbg
