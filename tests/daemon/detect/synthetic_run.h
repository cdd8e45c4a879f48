// A made-up training run with a known graph: batch -> l0 -> a0 -> l1 -> a1 … -> head, parameters, optimizer, loss.
// Every level wanders a little, by a fixed generator, so that baselines have something to learn. Tests bend one thing
// at a time. This is not a model of training: whether real runs are judged rightly is what the recordings are for.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "daemon/model/sample.h"

namespace neuraldbg::testing {

// What a step is made of; a test's hook changes it before it becomes samples.
struct StepValues {
  std::uint64_t step = 0;
  bool applied = true, dirty = false, found_inf = false, complete = true;
  float learning_rate = 1e-3F, loss_scale = 1.0F, loss = 1.0F;
  float input_level = 0;             // log2 rms
  std::vector<float> forward_gain;   // by node; levels follow from them
  std::vector<float> backward_gain;  // by node; what the consumer's backward does
  float root_level = -6;             // log2 rms of the gradient at the sink
  std::vector<float> dead_share;     // by node
  std::vector<float> forward_nan, backward_nan;
  std::vector<std::uint8_t> requires_grad;  // by node
  std::vector<std::uint8_t> cut;            // by node: no gradient comes here, nor to what is before
  std::vector<std::uint8_t> evaluation;     // by node: the module is in evaluation mode
  std::vector<float> numel;                 // by node
  std::vector<std::uint8_t> absent;         // by node: module did not run
  std::vector<float> gradient_level, update_level, parameter_level;  // by parameter
  std::vector<std::uint8_t> changed, has_gradient;
  std::vector<float> value_nan;
  std::vector<std::uint64_t> frozen_since;  // by parameter, where changed is 0: the step of its last change
  float batch_nan = 0;
  std::uint64_t missing = 0;

  // The parameter keeps the bits that it had after step `last_change`.
  void Freeze(std::uint32_t parameter, std::uint64_t last_change) {
    changed[parameter] = 0;
    frozen_since[parameter] = last_change;
  }
};

class SyntheticRun {
 public:
  using Hook = std::function<void(StepValues&)>;
  explicit SyntheticRun(std::uint32_t layers = 4, std::uint32_t rotation = 1);

  Topology topology;
  std::uint32_t node_count() const { return nodes_; }
  std::uint32_t parameter_count() const { return parameters_; }
  std::uint32_t NodeOf(const std::string& module) const;
  std::uint32_t ParameterOf(const std::string& name) const;
  // Deterministic in (step, hook).
  StepFrame Frame(std::uint64_t step, const Hook& hook = nullptr) const;

 private:
  StepValues Normal(std::uint64_t step) const;
  float Noise(std::uint64_t step, std::uint32_t stream) const;  // in [-0.5, 0.5]
  void AddSites();
  std::uint32_t other_sites() const { return 2 * nodes_ + parameters_; }  // optimizer, loss, batch, step
  void AddForward(const StepValues& values, StepFrame& frame) const;
  void AddBackward(const StepValues& values, StepFrame& frame) const;
  void AddOptimizer(const StepValues& values, StepFrame& frame) const;
  Sample Parameter(const StepValues& values, std::uint32_t parameter) const;

  std::uint32_t layers_, rotation_, nodes_ = 0, parameters_ = 0;
};

}  // namespace neuraldbg::testing
