// The edges of exact rules: what just does not count. That they fire is what tests/daemon/infer/fault_kinds_test.cc
// shows.
#include <gtest/gtest.h>

#include <limits>

#include "daemon/detect/rank_detectors.h"
#include "tests/daemon/detect/synthetic_run.h"

namespace neuraldbg {
namespace {

using testing::StepValues;
using testing::SyntheticRun;

std::vector<Finding> Observe(const SyntheticRun& run, std::uint64_t steps, const SyntheticRun::Hook& hook) {
  RankDetectors detectors;
  detectors.SetTopology(run.topology);
  std::vector<Transition> transitions;
  std::vector<Finding> findings;
  for (std::uint64_t step = 0; step < steps; ++step) detectors.Observe(run.Frame(step, hook), transitions, findings);
  return findings;
}

TEST(LearningRate, FourTimesTheLargestIsTheLimit) {
  const SyntheticRun run;
  const auto jump = [&](float factor) {
    return Observe(run, 60, [=](StepValues& v) { v.learning_rate *= v.step == 50 ? factor : 1; }).size();
  };
  EXPECT_EQ(jump(3.9F), 0U);
  EXPECT_EQ(jump(4.1F), 1U);
}

TEST(LearningRate, FourZeroStepsAreAllowedAndTheFifthIsNot) {
  const SyntheticRun run;
  const auto zeros = [&](std::uint64_t count) {
    return Observe(run, 60, [=](StepValues& v) {
      if (v.step >= 40 && v.step < 40 + count) v.learning_rate = 0;
    });
  };
  EXPECT_TRUE(zeros(4).empty());
  const std::vector<Finding> five = zeros(5);
  ASSERT_EQ(five.size(), 1U);
  EXPECT_EQ(five[0].step, 40U);
  EXPECT_EQ(five[0].detected, 44U);
}

TEST(Nonfinite, AMaskThatHarmsNobodyIsUsual) {
  const SyntheticRun run;
  const std::uint32_t mask = run.NodeOf("l1");
  EXPECT_TRUE(Observe(run, 60, [=](StepValues& v) { v.forward_nan[mask] = 6; }).empty());
  // Once its consumer suffers as well, the consumer is the producer of the trouble, not the mask.
  const auto findings = Observe(run, 60, [&](StepValues& v) {
    v.forward_nan[mask] = 6;
    if (v.step < 50) return;
    for (std::uint32_t i = run.NodeOf("a1"); i < run.node_count(); ++i) v.forward_nan[i] = 1;
    v.loss = std::numeric_limits<float>::quiet_NaN();
  });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].module, "a1");
}

TEST(Nonfinite, ASkippedStepMayHaveInfiniteGradients) {
  const SyntheticRun run;
  EXPECT_TRUE(Observe(run, 60, [&](StepValues& v) {
                if (v.step != 50) return;
                v.applied = false;
                v.found_inf = true;
                std::fill(v.backward_nan.begin(), v.backward_nan.end(), 9.0F);
              }).empty());
}

TEST(Nonfinite, NanThatDiesOnItsWayBackHarmsNoParameter) {
  const SyntheticRun run;
  EXPECT_TRUE(Observe(run, 60, [&](StepValues& v) {
                if (v.step >= 50) v.backward_nan[run.NodeOf("a1")] = 2;  // the ReLU below zeroes it
              }).empty());
}

TEST(Nonfinite, OverflowIsToldFromNanByTheHeadroomBefore) {
  SyntheticRun run;
  run.topology.sites[run.NodeOf("l1")].dtype = DType::kFloat16;
  const auto hook = [&](float gain) {
    return [&run, gain](StepValues& v) {
      v.forward_gain[run.NodeOf("l1")] += gain;
      if (v.step < 50) return;
      for (std::uint32_t i = run.NodeOf("l1"); i < run.node_count(); ++i) v.forward_nan[i] = 1;
      v.loss = std::numeric_limits<float>::quiet_NaN();
    };
  };
  // Only infinities are an overflow; the synthetic run has NaN, so even without headroom it stays NONFINITE_FORWARD.
  const auto findings = Observe(run, 55, hook(14));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(HypothesisKindName(findings[0].kind), "NONFINITE_FORWARD");
}

TEST(UpdateLost, FourteenStepsAreNotEnoughAndTinyGradientsDoNotCount) {
  const SyntheticRun run;
  const std::uint32_t weight = run.ParameterOf("l1.weight");
  const auto still = [&](std::uint64_t steps, float gradient) {
    return Observe(run, 80,
                   [=](StepValues& v) {
                     if (v.step < 40 || v.step >= 40 + steps) return;
                     v.Freeze(weight, 39);
                     v.gradient_level[weight] = gradient;
                   })
        .size();
  };
  EXPECT_EQ(still(14, -8), 0U);
  EXPECT_EQ(still(15, -8), 1U);
  EXPECT_EQ(still(30, -41), 0U) << "below 2^-40 an update may honestly round to nothing";
  EXPECT_EQ(still(30, -8 - 17), 0U) << "2^17 below the largest gradient";
}

TEST(UpdateLost, SkippedStepsDoNotCount) {
  const SyntheticRun run;
  EXPECT_TRUE(Observe(run, 80, [](StepValues& v) {
                if (v.step < 40) return;
                v.applied = v.step % 4 == 0;
                v.found_inf = false;
                std::fill(v.changed.begin(), v.changed.end(), static_cast<std::uint8_t>(v.applied));
              }).empty());
}

TEST(GradientFlow, ParametersThatNeverHadAGradientAreNotStarved) {
  const SyntheticRun run;
  EXPECT_TRUE(Observe(run, 80, [&](StepValues& v) { v.has_gradient[run.ParameterOf("l1.bias")] = 0; }).empty());
  const auto findings = Observe(run, 80, [&](StepValues& v) {
    if (v.step >= 40) v.has_gradient[run.ParameterOf("l1.bias")] = 0;
  });
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].weak);
  EXPECT_EQ(findings[0].step, 40U);
}

TEST(GradientFlow, DirtySinceTheStartNeedsGrowingGradients) {
  const SyntheticRun run;
  EXPECT_TRUE(Observe(run, 80, [](StepValues& v) { v.dirty = v.step > 0; }).empty());
  const auto findings = Observe(run, 80, [](StepValues& v) {
    v.dirty = v.step > 0;
    for (float& level : v.gradient_level) level += std::log2(1.0F + static_cast<float>(v.step));
  });
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(HypothesisKindName(findings[0].kind), "GRADIENT_ACCUMULATING");
  EXPECT_LE(findings[0].step, 2U);
}

TEST(InitialState, ResumedRunsAreNotJudged) {
  SyntheticRun run;
  for (ParameterInitEntry& init : run.topology.parameter_inits) init.sum_squares *= init.site % 4 == 0 ? 1e6 : 1;
  EXPECT_FALSE(Observe(run, 2, nullptr).empty());
  run.topology.run.start_step = 1000;
  EXPECT_TRUE(Observe(run, 2, nullptr).empty());
}

TEST(DepthProfile, FourteenBinadesOverTheFirstTenSteps) {
  const SyntheticRun run(10);
  const auto profile = [&](float per_node) {
    return Observe(run, 12, [=](StepValues& v) {
      for (float& gain : v.backward_gain) gain = per_node;
    });
  };
  EXPECT_TRUE(profile(-0.6F).empty());
  const auto vanishing = profile(-0.9F);
  ASSERT_EQ(vanishing.size(), 1U);
  EXPECT_EQ(HypothesisKindName(vanishing[0].kind), "VANISHING_GRADIENT");
  EXPECT_EQ(vanishing[0].step, 0U);
  const auto exploding = profile(0.9F);
  ASSERT_EQ(exploding.size(), 1U);
  EXPECT_EQ(HypothesisKindName(exploding[0].kind), "EXPLODING_GRADIENT");
}

}  // namespace
}  // namespace neuraldbg
