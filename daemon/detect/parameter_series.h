// Gradients, updates and values of parameters. Only a rotating part of them is observed at a step, so every parameter
// has a clock of its own that ticks when it was seen.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"
#include "shared/series/series.h"

namespace neuraldbg {

struct ParameterTrack {
  Series gradient_level, gradient_gain, update_level, update_per_rate, update_per_gradient, level;
  std::array<std::uint64_t, Series::kHistory> steps{};
  std::uint64_t ticks = 0;

  std::uint64_t StepOf(std::uint64_t tick) const { return steps[tick % Series::kHistory]; }
  // Evidence that the newest update is neither what the learning rate nor what the gradient explains, and large enough
  // against the weight to matter.
  double UpdateEvidence(std::uint64_t tick) const;
  bool UpdateMatters(std::uint64_t tick) const;
  bool UpdateHot() const;

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, gradient_level, gradient_gain, update_level, update_per_rate, update_per_gradient, level, steps,
           ticks);
  }
};

class ParameterSeries {
 public:
  void Observe(const Observation& observation, DetectorOutput& output);
  void ForgetBaselines();

  const ParameterTrack& track(std::uint32_t parameter) const { return tracks_[parameter]; }
  bool anything_hot() const { return hot_; }
  // All gradients shrank together, though the backward sites did not: something between backward and optimizer.
  bool all_gradients_collapsed() const { return collapsed_now_ && collapsed_before_; }
  void Grow(const GraphGrowth& growth) { GraphGrowth::Move(growth.parameter_from, tracks_); }

  bool Fits(const SiteGraph& graph) const { return tracks_.size() == graph.parameters().size(); }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, tracks_, hot_, collapsed_now_, collapsed_before_, collapse_step_);
  }
  std::uint64_t collapse_step() const { return collapse_step_; }

 private:
  void ObserveOne(const Observation& observation, std::uint32_t index, DetectorOutput& output);
  void JudgeCollapse(const Observation& observation);

  std::vector<ParameterTrack> tracks_;
  bool hot_ = false;
  bool collapsed_now_ = false, collapsed_before_ = false;
  std::uint64_t collapse_step_ = 0;
};

}  // namespace neuraldbg
