#include "daemon/infer/change_split.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/daemon/detect/synthetic_run.h"

namespace neuraldbg {
namespace {

using testing::StepValues;
using testing::SyntheticRun;

ChangeSplit Split(const SyntheticRun& run, bool backward, std::uint32_t node, const SyntheticRun::Hook& hook) {
  RankDetectors detectors;
  detectors.SetTopology(run.topology);
  std::vector<Transition> transitions;
  std::vector<Finding> findings;
  for (std::uint64_t step = 0; step < 80; ++step) {
    detectors.Observe(run.Frame(step, step == 79 ? hook : nullptr), transitions, findings);
  }
  return SplitChange(detectors, backward, node, detectors.tensors().ticks() - 1);
}

TEST(ChangeSplit, ContributionsSumToTheChange) {
  const SyntheticRun run;
  const ChangeSplit split = Split(run, false, run.node_count() - 1, [&](StepValues& v) {
    v.forward_gain[run.NodeOf("l1")] += 2;
    v.forward_gain[run.NodeOf("a2")] -= 0.7F;
    v.input_level += 1;
  });
  const double sum = std::accumulate(split.contribution.begin(), split.contribution.end(), split.batch);
  EXPECT_NEAR(sum, split.total, 1e-5);
  EXPECT_NEAR(split.contribution[run.NodeOf("l1")], 2, 0.3);
  EXPECT_NEAR(split.contribution[run.NodeOf("a2")], -0.7, 0.3);
  EXPECT_NEAR(split.batch, 1, 0.3);
}

TEST(ChangeSplit, AMergeSharesByEnergy) {
  SyntheticRun run;  // l0 also feeds head: a skip connection
  run.topology.edges.push_back({run.NodeOf("l0"), run.NodeOf("head")});
  const ChangeSplit split =
      Split(run, false, run.node_count() - 1, [&](StepValues& v) { v.forward_gain[run.NodeOf("l0")] += 3; });
  const double sum = std::accumulate(split.contribution.begin(), split.contribution.end(), split.batch);
  EXPECT_NEAR(sum, split.total, 1e-5);
  EXPECT_NEAR(split.contribution[run.NodeOf("l0")], split.total, 0.4) << "both paths lead back to l0";
}

TEST(ChangeSplit, BackwardRunsTheOtherWay) {
  const SyntheticRun run;
  const ChangeSplit split = Split(run, true, 0, [&](StepValues& v) {
    v.backward_gain[run.NodeOf("a1")] -= 5;
    v.root_level += 4;  // what enters at the sink is not the model's doing
  });
  const double sum = std::accumulate(split.contribution.begin(), split.contribution.end(), 0.0);
  EXPECT_NEAR(sum, split.total, 1e-5);
  EXPECT_NEAR(split.contribution[run.NodeOf("a1")], -5, 0.3);
  EXPECT_NEAR(split.total, -5, 0.5);
}

}  // namespace
}  // namespace neuraldbg
