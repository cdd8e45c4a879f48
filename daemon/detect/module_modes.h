// Exact: a module that trained is left in evaluation mode (net.eval() without net.train() after it) while steps go on
// being applied. Evaluation passes in between are no part of a step and are not seen here.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"

namespace neuraldbg {

class ModuleModeDetector {
 public:
  void Observe(const Observation& observation, DetectorOutput& output);
  void Grow(const GraphGrowth& growth) { GraphGrowth::Move(growth.node_from, nodes_); }
  bool Fits(const SiteGraph& graph) const { return nodes_.size() == graph.nodes().size(); }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, nodes_, told_);
  }

 private:
  // What the node's module was in the last applied step that observed it.
  enum class Mode : std::uint8_t { kUnknown, kTraining, kEvaluation };

  std::vector<Mode> nodes_;
  bool told_ = false;
};

}  // namespace neuraldbg
