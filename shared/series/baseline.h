// The normal of one series, learned from the run itself: a robust line through the last samples and the spread about
// it.
//
// Owner: a Series. Not thread-safe. Only the series decides which samples enter (late, and never flagged ones).
#pragma once

#include <array>
#include <cstdint>

#include "shared/series/series_thresholds.h"
#include "shared/series/state_archive.h"

namespace neuraldbg {

class Baseline {
 public:
  void Admit(float value);
  // Recomputes centre, slope and spread from the window. Costs four selections over 48 floats, so callers ration it.
  void Refresh();

  // Difference to the baseline of a sample taken `lag` samples after the last admitted one: the smaller of "against a
  // constant" and "against the line", and 0 where they disagree in sign. A healthy trend is thus no deviation, and
  // neither is a series that stopped following its trend.
  double Deviation(double value, double lag) const;
  double sigma(double floor) const;
  double center() const { return center_; }
  std::uint32_t count() const { return count_; }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, window_, center_, slope_, spread_, count_);
  }

 private:
  std::uint32_t held() const { return count_ < threshold::kWindow ? count_ : threshold::kWindow; }

  std::array<float, threshold::kWindow> window_{};  // ring in order of entry; next slot is count_ % kWindow
  float center_ = 0, slope_ = 0, spread_ = 0;
  std::uint32_t count_ = 0;  // samples ever admitted
};

}  // namespace neuraldbg
