// The loss: its level, and a CUSUM for sustained shifts that hide in a noisy loss. Clock: every step with a loss
// record.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/detect/detector.h"
#include "shared/series/series.h"

namespace neuraldbg {

class LossSeries {
 public:
  void Observe(const Observation& observation, DetectorOutput& output);
  void ForgetBaseline();

  const Series& series() const { return series_; }
  std::uint64_t ticks() const { return ticks_; }
  std::uint64_t StepOf(std::uint64_t tick) const { return steps_[tick % Series::kHistory]; }
  double cusum() const { return cusum_ / threshold::kCusumLimit; }  // 1 = alarm
  std::uint64_t cusum_start_step() const { return cusum_start_step_; }
  bool hot() const { return hot_; }
  double start_level() const { return start_; }  // median of the first five losses
  bool fell_below_noise(double value) const;

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, series_, steps_, first_, ticks_, start_, cusum_, cusum_start_step_, restart_, negative_, hot_);
  }

 private:
  void LearnStart(double value);
  bool Negated(double value) const;
  void ReportNegation(const Observation& observation, double value, DetectorOutput& output) const;
  void Accumulate(double value, std::uint64_t step);

  Series series_;
  std::array<std::uint64_t, Series::kHistory> steps_{};
  std::array<float, 5> first_{};
  std::uint64_t ticks_ = 0;
  double start_ = 0;
  double cusum_ = 0;
  std::uint64_t cusum_start_step_ = 0;
  bool restart_ = true;    // the next step is the first of a new sum
  bool negative_ = false;  // a loss that changes sign has no level; it is then not judged
  bool hot_ = false;
};

}  // namespace neuraldbg
