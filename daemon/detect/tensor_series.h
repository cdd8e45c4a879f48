// Levels and gains of all module outputs, glue inputs, merges and their gradients: the series that statistical
// inference is built on. One clock for all of them, which ticks in steps that observed tensors.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"
#include "shared/series/series.h"

namespace neuraldbg {

struct NodeSeries {
  Series forward_level, forward_gain, dead_share, saturated_share, backward_level, backward_gain;
  float gradient_numel = 0;  // of the first observed gradient: mean-reduced losses make gradients ~ 1/batch
  float forward_numel = 0;
  void ForgetBaselines() {
    for (Series* series :
         {&forward_level, &forward_gain, &dead_share, &saturated_share, &backward_level, &backward_gain}) {
      series->ForgetBaseline();
    }
  }
  std::uint16_t odd_numel = 0, absent = 0;  // counts over the first kRoutedSteps ticks
  bool routed = false;  // gets a varying share of the batch (an expert, a dropped layer): not judged

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, forward_level, forward_gain, dead_share, saturated_share, backward_level, backward_gain,
           gradient_numel, forward_numel, odd_numel, absent, routed);
  }
};

class TensorSeries {
 public:
  void Observe(const Observation& observation, DetectorOutput& output);
  void ForgetBaselines();

  const NodeSeries& node(std::uint32_t index) const { return nodes_[index]; }
  const Series& batch(std::uint32_t index) const { return batches_[index]; }
  const Series& batch_zero_share(std::uint32_t index) const { return batch_zero_shares_[index]; }
  std::uint64_t ticks() const { return ticks_; }
  std::uint64_t StepOf(std::uint64_t tick) const { return steps_[tick % Series::kHistory]; }
  // Newest tick whose step is not after `step`; ticks() if none is remembered.
  std::uint64_t TickOf(std::uint64_t step) const;
  // Tick that shows what happened at `step`: where tensors are sampled, the first one observed from then on; the newest
  // if none was.
  std::uint64_t TickShowing(std::uint64_t step) const;
  // What is new at the observed step `step` may have begun in any step from here on.
  std::uint64_t FirstUnseen(std::uint64_t step) const;
  // log2 rms of the gradient of node at tick, not relative to the sinks.
  float AbsoluteBackwardLevel(const SiteGraph& graph, std::uint32_t node, std::uint64_t tick) const;
  // Combined log2 level of the gradients at the sinks.
  float RootLevel(std::uint64_t tick) const { return root_levels_[tick % Series::kHistory]; }
  // Combined log2 level of the float inputs of the model at tick; 0 where all are integers.
  float BatchLevel(const SiteGraph& graph, std::uint64_t tick) const;
  bool anything_hot() const { return hot_; }
  void Grow(const GraphGrowth& growth);
  bool Fits(const SiteGraph& graph) const {
    return nodes_.size() == graph.nodes().size() && batches_.size() == graph.batches().size() &&
           batch_zero_shares_.size() == batches_.size();
  }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, nodes_, batches_, batch_zero_shares_, steps_, root_levels_, ticks_, hot_);
  }

 private:
  void ObserveBatches(const Observation& observation, DetectorOutput& output);
  void ObserveForward(const Observation& observation);
  void ObserveBackward(const Observation& observation);
  void LearnRouting(const Observation& observation);
  void ProposeRegimes(const Observation& observation, DetectorOutput& output);
  void ProposeForward(const Observation& observation, std::uint32_t index, DetectorOutput& output);
  void ProposeBackward(const Observation& observation, std::uint32_t index, DetectorOutput& output);

  std::vector<NodeSeries> nodes_;
  std::vector<Series> batches_, batch_zero_shares_;
  std::array<std::uint64_t, Series::kHistory> steps_{};
  std::array<float, Series::kHistory> root_levels_{};  // combined gradient level at the sinks, by tick
  std::uint64_t ticks_ = 0;
  bool hot_ = false;
  // Scratch of one Observe call.
  std::vector<double> energy_;
  std::vector<float> level_;
};

}  // namespace neuraldbg
