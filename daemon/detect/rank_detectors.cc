#include "daemon/detect/rank_detectors.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace neuraldbg {

void RankDetectors::SetTopology(const Topology& topology) {
  SiteGraph grown(topology);
  const GraphGrowth growth = grown.GrowthSince(graph_);
  graph_ = std::move(grown);
  regimes_.Grow(growth);
  tensors_.Grow(growth);
  parameters_.Grow(growth);
  nonfinite_.Grow(growth);
  rates_.Grow(growth);
  cut_.Grow(growth);
  modes_.Grow(growth);
  flow_.Grow(growth);
  lost_.Grow(growth);
  profile_.Grow(growth);
  silence_.Grow(graph_, growth);
  if (!initial_told_) initial_ = JudgeInitialParameters(topology, graph_);
}

bool RankDetectors::FitsGraph() const {
  return regimes_.Fits(graph_.site_count()) && tensors_.Fits(graph_) && parameters_.Fits(graph_) &&
         nonfinite_.Fits(graph_) && cut_.Fits(graph_) && modes_.Fits(graph_) && rates_.Fits(graph_) &&
         flow_.Fits(graph_) && lost_.Fits(graph_) && profile_.Fits(graph_) && silence_.Fits(graph_);
}

// After a hole (nobody drained the ring for long, and what came is the black box of a dead job) the network is another
// one: to hold it against the old baseline would read missing records as values.
void RankDetectors::NoticeHole(std::uint64_t step) {
  const std::uint64_t gap = step > last_step_ ? step - last_step_ : 0;
  const bool hole = usual_gap_ > 0 && gap > threshold::kHoleSteps && gap > threshold::kHoleGaps * usual_gap_;
  if (hole) {
    tensors_.ForgetBaselines();
    parameters_.ForgetBaselines();
    loss_.ForgetBaseline();
    learning_since_ = tensors_.ticks();
  } else if (initial_told_) {
    usual_gap_ = gap;
  }
  last_step_ = step;
}

void RankDetectors::Observe(const StepFrame& frame, std::vector<Transition>& transitions,
                            std::vector<Finding>& findings) {
  observation_.Decode(graph_, frame);
  NoticeHole(frame.step);
  DetectorOutput output{regimes_, findings};
  if (!initial_told_) {
    // Values at attach are judged with the first step, when the manifest is certainly whole.
    initial_told_ = true;
    found_at_start_ = !initial_.empty();
    for (Finding& finding : initial_) {
      finding.step = finding.detected = frame.step;
      findings.push_back(std::move(finding));
    }
    initial_.clear();
  }
  nonfinite_.Observe(observation_, output);
  rates_.Observe(observation_, output);
  tensors_.Observe(observation_, output);
  parameters_.Observe(observation_, output);
  loss_.Observe(observation_, output);
  const bool loss_is_noise =
      observation_.loss.present && loss_.fell_below_noise(static_cast<double>(observation_.loss.value));
  modes_.Observe(observation_, output);
  cut_.Observe(observation_, output);
  flow_.Observe(observation_, tensors_, parameters_, cut_.told(), loss_is_noise, output);
  if (!nonfinite_.suppresses_statistics()) lost_.Observe(observation_, rates_.largest(), output);
  profile_.Observe(observation_, found_at_start_, output);
  silence_.Observe(observation_, cut_);
  regimes_.Settle(observation_, frame.rank.rank, frame.rank.incarnation, transitions);
}

bool RankDetectors::Alarmed() const {
  if (nonfinite_.suppresses_statistics()) return false;
  return tensors_.anything_hot() || parameters_.anything_hot() || loss_.hot() || parameters_.all_gradients_collapsed();
}

}  // namespace neuraldbg
