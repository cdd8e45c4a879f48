// Exact, once: parameters whose values before the first update are far off in scale, or all alike. And the depth
// profile of gradients over the first steps, before any baseline exists.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"

namespace neuraldbg {

// Findings of step 0 from the values at attach. Not for runs that resume: trained weights may be anywhere.
std::vector<Finding> JudgeInitialParameters(const Topology& topology, const SiteGraph& graph);

class DepthProfileDetector {
 public:
  // `explained`: a finding at the first step already says why the profile is what it is.
  void Observe(const Observation& observation, bool explained, DetectorOutput& output);
  void Grow(const GraphGrowth& growth) {
    if (!done_) GraphGrowth::Move(growth.node_from, nodes_);
  }
  bool Fits(const SiteGraph& graph) const {
    return done_ || (nodes_.size() == graph.nodes().size() && steps_ < threshold::kProfileSteps);
  }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, nodes_, steps_, first_step_, done_);
  }

 private:
  struct Node {
    std::array<float, threshold::kProfileSteps> level{}, gain{};
    template <typename Archive>
    void Visit(Archive& archive) {
      Fields(archive, level, gain);
    }
  };
  void Record(const Observation& observation);
  void Judge(const Observation& observation, DetectorOutput& output) const;

  std::vector<Node> nodes_;  // emptied once judged
  std::uint32_t steps_ = 0;
  std::uint64_t first_step_ = 0;
  bool done_ = false;
};

}  // namespace neuraldbg
