// One step of one rank in the terms detectors think in: log2 levels by graph node and parameter instead of samples by
// site. Decoded once a frame and shared by all detectors; what the frame did not hold is NaN or `present == false`.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "daemon/detect/site_graph.h"
#include "daemon/detect/thresholds.h"
#include "daemon/model/sample.h"

namespace neuraldbg {

inline constexpr float kNoLevel = std::numeric_limits<float>::quiet_NaN();

struct TensorReading {
  bool present = false;
  std::uint16_t flags = 0;
  float level = kNoLevel;  // log2 rms over finite elements; kLevelFloor when all are zero
  float numel = 0;
  float nonfinite = 0, infinite = 0;
  float dead_share = kNoLevel, saturated_share = kNoLevel, zero_share = kNoLevel;
  float mean = kNoLevel, mean_abs = kNoLevel, max_abs = kNoLevel;
};

struct ParameterReading {
  bool present = false;
  bool gradient_present = false;
  bool has_bits = false;
  bool changed = true;  // meaningful if has_changed
  bool has_changed = false;
  std::uint64_t bits = 0;
  float level = kNoLevel, gradient_level = kNoLevel, update_level = kNoLevel, cosine = kNoLevel;
  float value_nonfinite = 0, gradient_nonfinite = 0;
};

struct OptimizerReading {
  bool present = false;
  float learning_rate = kNoLevel, loss_scale = kNoLevel;
};

struct LossReading {
  bool present = false;
  bool finite = true;
  float value = kNoLevel, label_count = kNoLevel, label_ignored = kNoLevel, logit_gradient_sum_abs = kNoLevel;
  LossKind kind = LossKind::kUnknown;
  Reduction reduction = Reduction::kUnknown;
};

struct Observation {
  const SiteGraph* graph = nullptr;
  std::uint64_t step = 0;
  bool applied = false, complete = false, found_inf = false, dirty = false, has_step = false;
  bool sharp = false;  // complete and without drops: silence of a planned site means something
  bool tensors_observed = false;
  std::uint32_t rotation_groups = 1;
  std::uint32_t shed_level = 0;
  std::vector<TensorReading> forward, backward;  // by node
  std::vector<ParameterReading> parameters;      // by parameter
  std::vector<TensorReading> batches;            // by batch site
  std::vector<OptimizerReading> optimizers;      // by optimizer site
  LossReading loss;
  bool any_nonfinite = false;

  // Reuses the vectors' memory, so decoding allocates only when the graph grows.
  void Decode(const SiteGraph& site_graph, const StepFrame& frame);

  // Largest learning rate among the groups, NaN without an optimizer record.
  float learning_rate() const;
  float loss_scale() const;

 private:
  void Reset(const SiteGraph& site_graph);
  void DecodeSample(const Sample& sample);
};

}  // namespace neuraldbg
