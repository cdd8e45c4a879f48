// Exact: the autograd graph was cut in mid-run (detach, no_grad, .data).
//
// Two traces. An output that took part in autograd does so no longer: the record says it. Or outputs still require a
// gradient, through weights behind the cut, and none arrives any more while what they feed does get one: then the cut
// lies between the last module without and the first with. Records that do not come could also be the agent's fault, so
// this second trace counts only if a parameter behind it is seen to have no gradient either.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"

namespace neuraldbg {

class GraphCutDetector {
 public:
  void Observe(const Observation& observation, DetectorOutput& output);
  bool told() const { return told_; }
  // The node's gradient is known not to come: its silence is no blind spot.
  bool Explains(std::uint32_t node) const { return told_ && nodes_[node].silent_steps > 0; }
  void Grow(const GraphGrowth& growth) { GraphGrowth::Move(growth.node_from, nodes_); }
  bool Fits(const SiteGraph& graph) const { return nodes_.size() == graph.nodes().size(); }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, nodes_, told_);
  }

 private:
  struct Node {
    bool required_grad = false, had_grad_mode = false;
    std::uint32_t streak = 0;        // observed steps in a row with a gradient, until the first one without
    std::uint32_t silent_steps = 0;  // observed steps in a row without, after a long enough streak
    std::uint64_t silent_since = 0;
    bool starved = false;  // a parameter of this module was seen without a gradient since
    template <typename Archive>
    void Visit(Archive& archive) {
      Fields(archive, required_grad, had_grad_mode, streak, silent_steps, silent_since, starved);
    }
  };
  void CheckOutputs(const Observation& observation, DetectorOutput& output);
  void FollowGradients(const Observation& observation);
  void CheckSilent(const Observation& observation, DetectorOutput& output);
  void Tell(const Observation& observation, std::uint32_t node, std::uint64_t since, std::string module,
            const char* note, DetectorOutput& output);

  std::vector<Node> nodes_;
  bool told_ = false;
};

}  // namespace neuraldbg
