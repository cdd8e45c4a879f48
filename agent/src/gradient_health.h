// Health of a gradient from its norm alone, by the rule that the daemon judges the level of gradients by
// (shared/series): what is normal is learnt from the norms themselves.
//
// Owner: whoever asks. Not thread-safe. Pure: no clock, no allocation.
#pragma once

#include <cstdint>

#include "shared/series/series.h"

namespace neuraldbg {

enum class GradientHealth : std::uint8_t {
  kUnknown,  // too few norms to know what is normal
  kHealthy,
  kVanishing,
  kExploding,
  kNonfinite,
};
const char* GradientHealthName(GradientHealth health) noexcept;

class GradientNormSeries {
 public:
  // The norm of the next step; it becomes part of what is normal unless it is none.
  GradientHealth Observe(double norm) noexcept;
  // What Observe would say, without learning from it.
  GradientHealth Classify(double norm) const noexcept;

 private:
  Series series_;
  std::uint64_t next_ = 0;
};

}  // namespace neuraldbg
