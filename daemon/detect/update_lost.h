// Exact: parameters that have a gradient and a learning rate and yet do not change, bit for bit, although the optimizer
// stepped. Between two observations the fingerprint stands for the steps that rotation left out.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"

namespace neuraldbg {

class UpdateLostDetector {
 public:
  void Observe(const Observation& observation, double largest_rate, DetectorOutput& output);
  void Grow(const GraphGrowth& growth) { GraphGrowth::Move(growth.parameter_from, parameters_); }
  bool Fits(const SiteGraph& graph) const { return parameters_.size() == graph.parameters().size(); }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, parameters_, applied_steps_, largest_gradient_, told_all_);
  }

 private:
  struct Parameter {
    std::uint64_t bits = 0, since = 0;
    std::uint64_t applied_at = 0;  // value of applied_steps_ at the last observation
    std::uint32_t lost_steps = 0, lost_observations = 0;
    bool has_bits = false, told = false, lost = false;
    template <typename Archive>
    void Visit(Archive& archive) {
      Fields(archive, bits, since, applied_at, lost_steps, lost_observations, has_bits, told, lost);
    }
  };
  bool ObserveOne(const Observation& observation, std::uint32_t index, double largest_rate);
  void Tell(const Observation& observation, DetectorOutput& output);

  std::vector<Parameter> parameters_;
  std::uint64_t applied_steps_ = 0;
  double largest_gradient_ = -1000;  // of the last full rotation, decaying
  bool told_all_ = false;
};

}  // namespace neuraldbg
