#include "shared/series/baseline.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace neuraldbg {
namespace {

// Reorders `values`. Mean of the two middle values for an even count, as the usual definition has it.
float MedianOf(std::span<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return 0.5F * (*middle + *std::max_element(values.begin(), middle));
}

}  // namespace

void Baseline::Admit(float value) {
  window_[count_ % threshold::kWindow] = value;
  ++count_;
}

void Baseline::Refresh() {
  const std::uint32_t held_count = held();
  if (held_count == 0) return;
  std::array<float, threshold::kWindow> ordered;  // oldest first
  const std::uint32_t first = count_ <= threshold::kWindow ? 0 : count_ % threshold::kWindow;
  for (std::uint32_t i = 0; i < held_count; ++i) ordered[i] = window_[(first + i) % threshold::kWindow];

  const std::uint32_t half = std::max(held_count / 2, 1U);
  std::array<float, threshold::kWindow> scratch = ordered;
  center_ = MedianOf({scratch.data(), held_count});
  slope_ = 0;
  if (held_count >= 2) {
    scratch = ordered;
    const float older = MedianOf({scratch.data(), half});
    const float newer = MedianOf({scratch.data() + half, held_count - half});
    slope_ = (newer - older) / static_cast<float>(half);
  }
  const float middle = static_cast<float>(held_count - 1) / 2.0F;
  for (std::uint32_t i = 0; i < held_count; ++i) {
    scratch[i] = std::fabs(ordered[i] - center_ - (static_cast<float>(i) - middle) * slope_);
  }
  spread_ = MedianOf({scratch.data(), held_count});
}

double Baseline::Deviation(double value, double lag) const {
  const double constant = value - static_cast<double>(center_);
  const double line = constant - static_cast<double>(slope_) * (static_cast<double>(held()) / 2.0 + lag);
  if (constant * line <= 0) return 0;
  return std::fabs(constant) < std::fabs(line) ? constant : line;
}

double Baseline::sigma(double floor) const {
  return std::max(threshold::kMadToSigma * static_cast<double>(spread_), floor);
}

}  // namespace neuraldbg
