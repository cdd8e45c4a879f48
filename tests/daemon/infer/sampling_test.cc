// Tensors are observed in every second or fourth step only, losses and parameters in all of them.
#include <gtest/gtest.h>

#include <string>

#include "tests/daemon/infer/engine_driver.h"

namespace neuraldbg::testing {
namespace {

class SampledSteps : public ::testing::TestWithParam<std::uint64_t> {};

// The fault begins in a step that is not observed; the loss, which is, jumps at once.
TEST_P(SampledSteps, TheLossThatIsSeenFirstIsNoCauseOfWhatIsSeenAfterIt) {
  const std::uint64_t cadence = GetParam(), onset = 60 * cadence + 1, observed = 61 * cadence;
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, observed + 6 * cadence, [&](StepValues& v) {
    if (v.step % cadence != 0) v.absent.assign(v.absent.size(), 1);
    if (v.step < onset) return;
    v.forward_gain[run.NodeOf("a1")] += 4;
    v.loss *= 8;
  });
  const Diagnosis diagnosis = driver.engine.Diagnose();
  EXPECT_EQ(VerdictName(diagnosis.verdict), "FAULT");
  const Hypothesis lead = driver.Lead();
  EXPECT_EQ(HypothesisKindName(lead.kind), "ACTIVATION_SHIFT");
  EXPECT_EQ(lead.module, "a1");
  EXPECT_EQ(lead.step, observed) << "the first step that shows it";
  const std::string interval = "steps " + std::to_string(onset) + " to " + std::to_string(observed);
  ASSERT_FALSE(lead.evidence.empty());
  EXPECT_NE(lead.evidence[0].note.find(interval), std::string::npos) << lead.evidence[0].note;
}

INSTANTIATE_TEST_SUITE_P(EverySecondAndFourthStep, SampledSteps, ::testing::Values(2, 4));

// The loss has a baseline long before tensors that are looked at in every fourth step have one. By the time it is
// judged they may: that they did not move when it did is still not known.
TEST(Sampling, WhatHadNoBaselineThenDoesNotClearTheModel) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 180, [&](StepValues& v) {
    v.root_level = -10;
    if (v.step % 4 != 0) v.absent.assign(v.absent.size(), 1);
    if (v.step >= 161) v.loss *= 1.4F;  // counts once it has stayed for eight steps
  });
  EXPECT_EQ(VerdictName(driver.engine.Diagnose().verdict), "UNSURE");
}

TEST(Sampling, WhereEveryStepIsObservedNoIntervalIsSaid) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 70, [&](StepValues& v) {
    if (v.step >= 60) v.forward_gain[run.NodeOf("a1")] += 4;
  });
  ASSERT_FALSE(driver.Lead().evidence.empty());
  EXPECT_EQ(driver.Lead().step, 60U);
  EXPECT_EQ(driver.Lead().evidence[0].note.find("one of the steps"), std::string::npos);
}

}  // namespace
}  // namespace neuraldbg::testing
