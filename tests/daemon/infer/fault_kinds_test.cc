// One fault at a time in a synthetic run: kind, module, step and phase must come out, and the verdict must be FAULT.
// Each test also fails if the detector behind it is switched off, because nothing else names its kind.
#include <gtest/gtest.h>

#include <limits>

#include "tests/daemon/infer/engine_driver.h"

namespace neuraldbg::testing {
namespace {

constexpr std::uint64_t kOnset = 90;

void ExpectFault(const EngineDriver& driver, HypothesisKind kind, const std::string& module, std::uint64_t step,
                 Phase phase) {
  const Diagnosis diagnosis = driver.engine.Diagnose();
  EXPECT_EQ(VerdictName(diagnosis.verdict), "FAULT");
  ASSERT_FALSE(diagnosis.hypotheses.empty());
  const Hypothesis& lead = diagnosis.hypotheses.front();
  EXPECT_EQ(HypothesisKindName(lead.kind), HypothesisKindName(kind));
  EXPECT_EQ(lead.module, module);
  EXPECT_EQ(lead.step, step);
  EXPECT_EQ(static_cast<int>(lead.phase), static_cast<int>(phase));
  EXPECT_GE(lead.confidence, 0.5);
  EXPECT_FALSE(lead.summary.empty());
  EXPECT_FALSE(lead.remedy.empty());
  EXPECT_FALSE(lead.evidence.empty());
  EXPECT_FALSE(lead.chain.empty());
}

TEST(FaultKinds, NonfiniteForwardNamesTheProducerNotWhatReadsIt) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 20, [&](StepValues& v) {
    if (v.step < kOnset) return;
    for (std::uint32_t i = run.NodeOf("a1"); i < run.node_count(); ++i) v.forward_nan[i] = 3;
    v.loss = std::numeric_limits<float>::quiet_NaN();
    std::fill(v.value_nan.begin(), v.value_nan.end(), 1.0F);
  });
  ExpectFault(driver, HypothesisKind::NONFINITE_FORWARD, "a1", kOnset, Phase::kForward);
  EXPECT_TRUE(driver.Entered("NONFINITE"));
}

TEST(FaultKinds, NonfiniteBatchIsTheData) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 5, [&](StepValues& v) {
    if (v.step < kOnset) return;
    v.batch_nan = 1;
    std::fill(v.forward_nan.begin(), v.forward_nan.end(), 1.0F);
    v.loss = std::numeric_limits<float>::quiet_NaN();
  });
  ExpectFault(driver, HypothesisKind::DATA_NONFINITE, "", kOnset, Phase::kData);
}

TEST(FaultKinds, NonfiniteLossWithFiniteModel) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 5, [&](StepValues& v) {
    if (v.step >= kOnset) v.loss = std::numeric_limits<float>::infinity();
  });
  ExpectFault(driver, HypothesisKind::NONFINITE_LOSS, "", kOnset, Phase::kLoss);
}

TEST(FaultKinds, NonfiniteBackwardNamesTheModuleItPassed) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 5, [&](StepValues& v) {
    if (v.step < kOnset) return;
    for (std::uint32_t i = 0; i < run.NodeOf("a1"); ++i) v.backward_nan[i] = 2;
    v.value_nan[run.ParameterOf("l0.weight")] = 5;
  });
  ExpectFault(driver, HypothesisKind::NONFINITE_BACKWARD, "a1", kOnset, Phase::kBackward);
}

TEST(FaultKinds, NonfiniteParameterFromFiniteGradients) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 1, [&](StepValues& v) {
    if (v.step == kOnset) v.value_nan[run.ParameterOf("l2.weight")] = 7;
  });
  ExpectFault(driver, HypothesisKind::NONFINITE_PARAMETER, "l2", kOnset, Phase::kOptimizer);
}

TEST(FaultKinds, LearningRateSpike) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step == kOnset) v.learning_rate *= 60;
  });
  ExpectFault(driver, HypothesisKind::LEARNING_RATE_SPIKE, "", kOnset, Phase::kOptimizer);
  EXPECT_TRUE(driver.Entered("RATE_SPIKE"));
}

TEST(FaultKinds, LearningRateZero) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step >= kOnset) v.learning_rate = 0;
  });
  ExpectFault(driver, HypothesisKind::LEARNING_RATE_ZERO, "", kOnset, Phase::kOptimizer);
}

TEST(FaultKinds, VanishingGradientInOneBackward) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step >= kOnset) v.backward_gain[run.NodeOf("l1")] -= 13;  // the backward of a1, which consumes l1
  });
  ExpectFault(driver, HypothesisKind::VANISHING_GRADIENT, "a1", kOnset, Phase::kBackward);
  EXPECT_TRUE(driver.Entered("VANISHING"));
}

TEST(FaultKinds, ExplodingGradientInOneBackward) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step >= kOnset) v.backward_gain[run.NodeOf("a2")] += 10;
  });
  ExpectFault(driver, HypothesisKind::EXPLODING_GRADIENT, "l3", kOnset, Phase::kBackward);
}

// Noise below the alarm level in another module, a step earlier, is not what a thousandfold change comes from.
TEST(FaultKinds, ExplodingGradientBehindNoiseOfTheStepBefore) {
  const SyntheticRun run(6);
  EngineDriver driver(run);
  driver.Run(0, kOnset + 30, [&](StepValues& v) {
    if (v.step >= kOnset - 1) v.backward_gain[run.NodeOf("l4")] += 0.95F;
    if (v.step >= kOnset) v.backward_gain[run.NodeOf("l1")] += 9;
  });
  ExpectFault(driver, HypothesisKind::EXPLODING_GRADIENT, "a1", kOnset, Phase::kBackward);
}

// A chain leads from the cause to the loss, whether that has suffered yet or not.
TEST(FaultKinds, ChainsEndAtTheLoss) {
  const SyntheticRun run;
  for (const float jump : {0.0F, 3.0F}) {
    EngineDriver driver(run);
    driver.Run(0, kOnset + 20, [&](StepValues& v) {
      if (v.step >= kOnset) v.backward_gain[run.NodeOf("l1")] += 8;
      if (v.step >= kOnset + 3) v.loss *= std::exp2(jump);
    });
    const Hypothesis lead = driver.Lead();
    ASSERT_GE(lead.chain.size(), 2u);
    EXPECT_EQ(lead.chain.front().step, kOnset);
    EXPECT_EQ(lead.chain.back().phase, Phase::kLoss);
    EXPECT_EQ(lead.chain.back().note.find("rises") != std::string::npos, jump > 0) << lead.chain.back().note;
  }
}

TEST(FaultKinds, DeadUnits) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step < kOnset) return;
    v.dead_share[run.NodeOf("a1")] = 1;
    v.forward_gain[run.NodeOf("a1")] = -60;
  });
  ExpectFault(driver, HypothesisKind::DEAD_UNITS, "a1", kOnset, Phase::kForward);
  EXPECT_TRUE(driver.Entered("DEAD"));
}

TEST(FaultKinds, ActivationShift) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step >= kOnset) v.forward_gain[run.NodeOf("l2")] += 1.8F;
  });
  ExpectFault(driver, HypothesisKind::ACTIVATION_SHIFT, "l2", kOnset, Phase::kForward);
  EXPECT_TRUE(driver.Entered("SHIFTED"));
}

// y = k*x: both directions change, and the forward pass is where it happens.
TEST(FaultKinds, ForwardChangeExplainsTheBackwardOne) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step < kOnset) return;
    v.forward_gain[run.NodeOf("l2")] += 2;
    v.backward_gain[run.NodeOf("a1")] += 2;
  });
  ExpectFault(driver, HypothesisKind::ACTIVATION_SHIFT, "l2", kOnset, Phase::kForward);
}

TEST(FaultKinds, WeightUpdateExplainsTheForwardChange) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step >= kOnset) v.parameter_level[run.ParameterOf("l2.weight")] += 2;
    if (v.step > kOnset) v.forward_gain[run.NodeOf("l2")] += 2;
  });
  ExpectFault(driver, HypothesisKind::UPDATE_TOO_LARGE, "l2", kOnset, Phase::kOptimizer);
}

// The weight is looked at only every eighth step: the answer is revised when its turn comes.
TEST(FaultKinds, WeightUpdateIsFoundWhenRotationComesRound) {
  const SyntheticRun run(4, 8);
  EngineDriver driver(run);
  const auto hook = [&](StepValues& v) {
    if (v.step >= kOnset) v.parameter_level[run.ParameterOf("l2.weight")] += 2;
    if (v.step > kOnset) v.forward_gain[run.NodeOf("l2")] += 2;
  };
  driver.Run(0, kOnset + 3, hook);
  EXPECT_EQ(HypothesisKindName(driver.Lead().kind), "ACTIVATION_SHIFT");
  driver.Run(kOnset + 3, kOnset + 12, hook);
  ExpectFault(driver, HypothesisKind::UPDATE_TOO_LARGE, "l2", kOnset, Phase::kOptimizer);
}

TEST(FaultKinds, DataShift) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step >= kOnset) v.input_level += 3.5F;
  });
  ExpectFault(driver, HypothesisKind::DATA_SHIFT, "", kOnset, Phase::kData);
}

TEST(FaultKinds, LossJumpWithBoundedDerivativeIsTheLabels) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 15, [&](StepValues& v) {
    v.root_level = -10;  // sum |dL/dlogits| = 0.8 * 2^-10 * 1024 < 2
    if (v.step >= kOnset) v.loss *= 4;
  });
  ExpectFault(driver, HypothesisKind::LABEL_ANOMALY, "", kOnset, Phase::kLoss);
}

// A quarter more loss is far below the alarm level of 2^1.2; that it came at once and stays is what tells.
TEST(FaultKinds, SmallLastingStepOfTheLoss) {
  const SyntheticRun run;
  const auto hook = [](std::uint64_t last) {
    return [last](StepValues& v) {
      v.root_level = -10;
      if (v.step >= kOnset && v.step <= last) v.loss *= 1.4F;
    };
  };
  EngineDriver lasting(run);
  lasting.Run(0, kOnset + 12, hook(kOnset + 20));
  ExpectFault(lasting, HypothesisKind::LABEL_ANOMALY, "", kOnset, Phase::kLoss);
  EngineDriver passing(run);
  passing.Run(0, kOnset + 40, hook(kOnset + 6));
  EXPECT_EQ(VerdictName(passing.engine.Diagnose().verdict), "HEALTHY");
}

// Wrong labels make the network unlearn: long after the loss went up a little, a module's output follows.
TEST(FaultKinds, TensorsThatFollowTheLossLateAreNotItsCause) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 30, [&](StepValues& v) {
    v.root_level = -9;  // sum |dL/dlogits| below the bound of a mean-reduced cross-entropy
    if (v.step < kOnset) return;
    v.loss *= v.step % 2 == 0 ? 1.45F : 1.15F;
    if (v.step >= kOnset + 14) v.forward_gain[run.NodeOf("l2")] -= 1.5F;
  });
  ExpectFault(driver, HypothesisKind::LABEL_ANOMALY, "", kOnset, Phase::kLoss);
}

TEST(FaultKinds, SmallLastingStepOfAGain) {
  const SyntheticRun run;
  const auto hook = [&](std::uint64_t last) {
    return [&run, last](StepValues& v) {
      if (v.step >= kOnset && v.step <= last) v.forward_gain[run.NodeOf("l2")] += 0.78F;
    };
  };
  EngineDriver lasting(run);
  lasting.Run(0, kOnset + 12, hook(kOnset + 20));
  ExpectFault(lasting, HypothesisKind::ACTIVATION_SHIFT, "l2", kOnset, Phase::kForward);
  EngineDriver passing(run);
  passing.Run(0, kOnset + 40, hook(kOnset + 3));
  EXPECT_EQ(VerdictName(passing.engine.Diagnose().verdict), "HEALTHY");
}

TEST(FaultKinds, LossJumpBeyondTheBoundIsTheLoss) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 15, [&](StepValues& v) {
    v.root_level = -10 + (v.step >= kOnset ? 5.0F : 0.0F);
    if (v.step >= kOnset) v.loss *= 32;
  });
  ExpectFault(driver, HypothesisKind::LOSS_SPIKE, "", kOnset, Phase::kLoss);
}

TEST(FaultKinds, NegatedLoss) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 15, [&](StepValues& v) {
    if (v.step < kOnset) return;
    v.loss *= -1;
    v.forward_gain[run.NodeOf("l2")] += 0.3F * static_cast<float>(v.step - kOnset);
  });
  ExpectFault(driver, HypothesisKind::LOSS_DIVERGENCE, "", kOnset, Phase::kLoss);
}

TEST(FaultKinds, GradientsNotCleared) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 3, [&](StepValues& v) { v.dirty = v.step >= kOnset; });
  ExpectFault(driver, HypothesisKind::GRADIENT_ACCUMULATING, "", kOnset, Phase::kData);
}

TEST(FaultKinds, GraphCutByDetach) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 3, [&](StepValues& v) {
    if (v.step < kOnset) return;
    for (std::uint32_t i = 0; i <= run.NodeOf("a1"); ++i) v.requires_grad[i] = i == run.NodeOf("a1") ? 0 : 1;
  });
  ExpectFault(driver, HypothesisKind::NO_GRADIENT, "a1", kOnset, Phase::kForward);
}

TEST(FaultKinds, UpdateLostInOneLayer) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 20, [&](StepValues& v) {
    if (v.step < kOnset) return;
    v.Freeze(run.ParameterOf("l1.weight"), kOnset - 1);
    v.Freeze(run.ParameterOf("l1.bias"), kOnset - 1);
  });
  ExpectFault(driver, HypothesisKind::UPDATE_LOST, "l1", kOnset, Phase::kOptimizer);
  EXPECT_TRUE(driver.Entered("FROZEN"));
}

TEST(FaultKinds, UpdateLostUnderRotationCountsTheStepsBetweenObservations) {
  const SyntheticRun run(4, 8);
  EngineDriver driver(run);
  driver.Run(0, kOnset + 40, [&](StepValues& v) {
    if (v.step < kOnset) return;
    for (std::uint32_t p = 0; p < run.parameter_count(); ++p) v.Freeze(p, kOnset - 1);
  });
  const Hypothesis lead = driver.Lead();
  EXPECT_EQ(HypothesisKindName(lead.kind), "UPDATE_LOST");
  EXPECT_EQ(lead.module, "");
  EXPECT_LE(lead.step, kOnset + 8);
  EXPECT_FALSE(std::any_of(driver.transitions.begin(), driver.transitions.end(),
                           [&](const Transition& t) { return t.to == "FROZEN" && t.step < kOnset + 16; }));
}

TEST(FaultKinds, InitialScaleFarOff) {
  SyntheticRun run;
  for (ParameterInitEntry& init : run.topology.parameter_inits) {
    if (run.topology.sites[init.site].name == "l2.weight") init.sum_squares *= 1e5;
  }
  EngineDriver driver(run);
  driver.Run(0, 3);
  ExpectFault(driver, HypothesisKind::INIT_SCALE, "l2", 0, Phase::kOptimizer);
}

TEST(FaultKinds, InitialWeightsAllAlike) {
  SyntheticRun run;
  for (ParameterInitEntry& init : run.topology.parameter_inits) {
    if (run.topology.sites[init.site].name == "l3.weight") init.sum = 4096 * 0.125;  // mean equals rms
  }
  EngineDriver driver(run);
  driver.Run(0, 3);
  ExpectFault(driver, HypothesisKind::INIT_SYMMETRIC, "l3", 0, Phase::kOptimizer);
}

TEST(FaultKinds, ScalerThatNeverRecovers) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 150, [&](StepValues& v) {
    if (v.step < kOnset || v.step % 2 == 0) return;
    v.found_inf = true;
    v.applied = false;
    v.backward_nan[run.NodeOf("l0")] = 1;
  });
  ExpectFault(driver, HypothesisKind::SCALER_STALLED, "l0", driver.Lead().step, Phase::kOptimizer);
}

}  // namespace
}  // namespace neuraldbg::testing
