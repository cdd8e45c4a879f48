// Exact: a learning rate that jumps far above anything before, or stays at zero. One state per optimizer group.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"

namespace neuraldbg {

class LearningRateDetector {
 public:
  void Observe(const Observation& observation, DetectorOutput& output);
  double largest() const { return largest_; }
  void Grow(const GraphGrowth& growth) { GraphGrowth::Move(growth.optimizer_from, groups_); }
  bool Fits(const SiteGraph& graph) const { return groups_.size() == graph.optimizers().size(); }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, groups_, largest_);
  }

 private:
  struct Group {
    double largest = 0, before_zero = 0;
    std::uint64_t zero_since = 0;
    std::uint32_t zero_run = 0;
    std::uint64_t seen = 0;
    bool zero_told = false;
    template <typename Archive>
    void Visit(Archive& archive) {
      Fields(archive, largest, before_zero, zero_since, zero_run, seen, zero_told);
    }
  };
  void ObserveGroup(const Observation& observation, std::uint32_t index, double rate, DetectorOutput& output);

  std::vector<Group> groups_;
  double largest_ = 0;  // over all groups, ever
};

}  // namespace neuraldbg
