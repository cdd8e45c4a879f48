// Exact: where the first non-finite number of a step was produced. A node produces it when its output is non-finite and
// none of its inputs is; walking the step in order (input, forward, loss, backward, parameters) finds the first.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"

namespace neuraldbg {

class NonfiniteDetector {
 public:
  void Observe(const Observation& observation, DetectorOutput& output);
  // From the first real non-finite step until the values have been finite for a while, statistics are void.
  bool suppresses_statistics() const { return in_episode_; }
  void Grow(const GraphGrowth& growth) {
    GraphGrowth::Move(growth.node_from, usual_);
    GraphGrowth::Move(growth.node_from, max_abs_);
  }
  bool Fits(const SiteGraph& graph) const {
    return usual_.size() == graph.nodes().size() && max_abs_.size() == graph.nodes().size();
  }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, usual_, max_abs_, in_episode_, finite_steps_);
  }

 private:
  void ProposeRegimes(const Observation& observation, DetectorOutput& output) const;
  void LearnUsual(const Observation& observation);
  bool FindProducer(const Observation& observation, DetectorOutput& output) const;
  bool FindForward(const Observation& observation, DetectorOutput& output) const;
  bool FindLoss(const Observation& observation, DetectorOutput& output) const;
  bool FindBackward(const Observation& observation, DetectorOutput& output) const;
  bool FindParameter(const Observation& observation, DetectorOutput& output) const;
  bool UnusualForward(const Observation& observation, std::uint32_t node) const {
    return observation.forward[node].nonfinite > 0 && usual_[node] == 0;
  }

  std::vector<std::uint8_t> usual_;  // by node: non-finite on healthy steps too (a mask of -inf)
  std::vector<float> max_abs_;       // by node: last finite maximum, which tells overflow from division by zero
  bool in_episode_ = false;
  std::uint32_t finite_steps_ = 0;
};

}  // namespace neuraldbg
