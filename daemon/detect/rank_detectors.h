// All detectors of one rank, fed in the order in which they rely on each other. The graph belongs to it because every
// detector's state is indexed by it.
//
// Owner: the rank's inference state. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "daemon/detect/detector.h"
#include "daemon/detect/gradient_flow.h"
#include "daemon/detect/graph_cut.h"
#include "daemon/detect/initial_state.h"
#include "daemon/detect/learning_rate.h"
#include "daemon/detect/loss_series.h"
#include "daemon/detect/module_modes.h"
#include "daemon/detect/nonfinite.h"
#include "daemon/detect/parameter_series.h"
#include "daemon/detect/silence.h"
#include "daemon/detect/tensor_series.h"
#include "daemon/detect/update_lost.h"

namespace neuraldbg {

class RankDetectors {
 public:
  // Topologies only grow; state moves along with its site.
  void SetTopology(const Topology& topology);
  void Observe(const StepFrame& frame, std::vector<Transition>& transitions, std::vector<Finding>& findings);

  const SiteGraph& graph() const { return graph_; }
  const Observation& observation() const { return observation_; }
  const TensorSeries& tensors() const { return tensors_; }
  const ParameterSeries& parameters() const { return parameters_; }
  const LossSeries& loss() const { return loss_; }
  const SilenceDetector& silence() const { return silence_; }
  // Some series is in alarm at the newest step, and statistics mean something there.
  bool Alarmed() const;
  bool statistics_void() const { return nonfinite_.suppresses_statistics(); }
  bool warm() const { return tensors_.ticks() >= learning_since_ + threshold::kWarmSteps; }

  // The tensors had baselines when they were first observed at or after `step`; of steps that nobody remembers, when
  // the oldest was that is remembered.
  bool WasWarmAt(std::uint64_t step) const {
    const std::uint64_t shown = tensors_.TickShowing(step);
    const std::uint64_t oldest = tensors_.ticks() - std::min<std::uint64_t>(tensors_.ticks(), Series::kHistory);
    return (shown < tensors_.ticks() ? shown : oldest) >= learning_since_ + threshold::kWarmSteps;
  }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, regimes_, tensors_, parameters_, loss_, nonfinite_, rates_, cut_, modes_, flow_, lost_, profile_,
           silence_, initial_, last_step_, usual_gap_, learning_since_, initial_told_, found_at_start_);
  }
  // After a snapshot was read: whether all state has the size that the graph asks for.
  bool FitsGraph() const;
  // Only the graph, for a snapshot whose state follows.
  void AdoptGraph(const Topology& topology) { graph_ = SiteGraph(topology); }

 private:
  void NoticeHole(std::uint64_t step);

  SiteGraph graph_;
  std::vector<Finding> initial_;
  Observation observation_;
  RegimeBook regimes_;
  TensorSeries tensors_;
  ParameterSeries parameters_;
  LossSeries loss_;
  NonfiniteDetector nonfinite_;
  LearningRateDetector rates_;
  GraphCutDetector cut_;
  ModuleModeDetector modes_;
  GradientFlowDetector flow_;
  UpdateLostDetector lost_;
  DepthProfileDetector profile_;
  SilenceDetector silence_;
  std::uint64_t last_step_ = 0, usual_gap_ = 0;  // usual_gap_ 0: no two steps yet
  std::uint64_t learning_since_ = 0;             // tick of the tensors from which baselines are learnt
  bool initial_told_ = false, found_at_start_ = false;
};

}  // namespace neuraldbg
