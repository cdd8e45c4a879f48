// Sites that the plan says report and that do not. Only steps that are complete, lost no record and were fully observed
// prove anything; a silent site is a BLIND_SPOT, never a fault of the training.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"
#include "daemon/detect/graph_cut.h"

namespace neuraldbg {

class SilenceDetector {
 public:
  // A gradient that a cut graph explains (`cut`) is no blind spot.
  void Observe(const Observation& observation, const GraphCutDetector& cut);
  struct Silent {
    std::uint32_t site = kNoSite;
    std::uint64_t since = 0;
  };
  std::vector<Silent> Spots() const;
  void Grow(const SiteGraph& graph, const GraphGrowth& growth) {
    GraphGrowth::Move(growth.node_from, forward_);
    GraphGrowth::Move(growth.node_from, backward_);
    for (std::uint32_t i = 0; i < graph.node_count(); ++i) {
      forward_[i].site = graph.nodes()[i].site;
      backward_[i].site = graph.nodes()[i].gradient_site;
    }
  }
  bool Fits(const SiteGraph& graph) const {
    return forward_.size() == graph.nodes().size() && backward_.size() == graph.nodes().size();
  }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, forward_, backward_);
  }

 private:
  struct Place {
    std::uint32_t site = kNoSite;
    std::uint32_t silent_steps = 0;
    std::uint64_t since = 0;
    template <typename Archive>
    void Visit(Archive& archive) {
      Fields(archive, site, silent_steps, since);
    }
  };
  static void Count(Place& place, bool reported, std::uint64_t step);

  std::vector<Place> forward_, backward_;
};

}  // namespace neuraldbg
