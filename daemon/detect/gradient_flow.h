// Exact: gradients that were not cleared, parameters that stopped getting a gradient, updates that go uphill, and a
// loss scaler that never recovers.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"
#include "daemon/detect/parameter_series.h"
#include "daemon/detect/tensor_series.h"

namespace neuraldbg {

class GradientFlowDetector {
 public:
  // After the series have taken the step. `cut`: a graph that was cut is known. `loss_is_noise`: the net has memorised
  // its data, directions mean nothing.
  void Observe(const Observation& observation, const TensorSeries& tensors, const ParameterSeries& parameters, bool cut,
               bool loss_is_noise, DetectorOutput& output);
  void Grow(const GraphGrowth& growth) { GraphGrowth::Move(growth.parameter_from, parameters_); }
  bool Fits(const SiteGraph& graph) const { return parameters_.size() == graph.parameters().size(); }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, parameters_, steps_, dirty_from_start_, dirty_run_, dirty_told_, uphill_run_, uphill_since_,
           starved_told_, skipped_bits_, skipped_seen_, stalled_told_);
  }

 private:
  struct Parameter {
    bool seen = false;
    std::uint32_t run = 0;  // applied steps without gradient, as far as observed
    std::uint64_t since = 0, last = 0;
    float first_gain = kNoLevel;  // gradient against the backward site at the start, for accumulation
    template <typename Archive>
    void Visit(Archive& archive) {
      Fields(archive, seen, run, since, last, first_gain);
    }
  };
  void CheckDirty(const Observation& observation, const ParameterSeries& parameters, DetectorOutput& output);
  bool GradientsGrow(const Observation& observation, const ParameterSeries& parameters) const;
  void CheckStarved(const Observation& observation, const TensorSeries& tensors, bool cut, DetectorOutput& output);
  void CheckUphill(const Observation& observation, bool loss_is_noise, DetectorOutput& output);
  void CheckScaler(const Observation& observation, DetectorOutput& output);

  std::vector<Parameter> parameters_;
  std::uint64_t steps_ = 0;
  bool dirty_from_start_ = true, dirty_told_ = false;
  std::uint32_t dirty_run_ = 0;
  std::uint32_t uphill_run_ = 0;
  std::uint64_t uphill_since_ = 0;
  bool starved_told_ = false;
  std::uint64_t skipped_bits_ = 0;  // bit 0: the newest step was skipped by the scaler
  std::uint32_t skipped_seen_ = 0;
  bool stalled_told_ = false;
};

}  // namespace neuraldbg
