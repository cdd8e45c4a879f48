// Healthy runs that fool fixed thresholds. Each must stay HEALTHY, without a single hypothesis.
#include <gtest/gtest.h>

#include "tests/daemon/infer/engine_driver.h"

namespace neuraldbg::testing {
namespace {

constexpr std::uint64_t kSteps = 400;

void ExpectHealthy(const SyntheticRun& run, const SyntheticRun::Hook& hook, std::uint64_t steps = kSteps) {
  EngineDriver driver(run);
  driver.Run(0, steps, hook);
  const Diagnosis diagnosis = driver.engine.Diagnose();
  EXPECT_EQ(VerdictName(diagnosis.verdict), "HEALTHY");
  for (const Hypothesis& hypothesis : diagnosis.hypotheses) ADD_FAILURE() << hypothesis.summary;
}

TEST(HealthyControls, PlainRun) {
  const SyntheticRun run;
  ExpectHealthy(run, nullptr, 2000);
}

// As when nobody drained the ring and only the black box of the end is left: the network is another one by then.
TEST(HealthyControls, HoleInTheRecord) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 300);
  const auto other_network = [](StepValues& v) {
    for (float& gain : v.forward_gain) gain += 1.5F;
    for (float& level : v.update_level) level += 3;
  };
  EXPECT_TRUE(driver.engine.Diagnose().warm);
  driver.Run(4000, 4020, other_network);
  EXPECT_FALSE(driver.engine.Diagnose().warm);
  driver.Run(4020, 4100, other_network);
  EXPECT_TRUE(driver.engine.Diagnose().warm);
  EXPECT_TRUE(driver.engine.Diagnose().hypotheses.empty());
  EXPECT_TRUE(driver.transitions.empty());
  // What happens after the hole is judged by what came after it.
  driver.Run(4100, 4110, [&](StepValues& v) {
    for (float& gain : v.forward_gain) gain += 1.5F;
    for (float& level : v.update_level) level += 3;
    v.forward_gain[run.NodeOf("a1")] += 5;
  });
  EXPECT_EQ(driver.Lead().step, 4100u);
  EXPECT_EQ(driver.Lead().module, "a1");
}

TEST(HealthyControls, WarmUpFromZeroWithKeyBiasWithoutGradient) {
  const SyntheticRun run;
  ExpectHealthy(run, [&](StepValues& v) {
    v.learning_rate = 1e-3F * std::min(1.0F, static_cast<float>(v.step) / 40.0F);
    if (v.step == 0) std::fill(v.changed.begin(), v.changed.end(), std::uint8_t{0});
    v.gradient_level[run.ParameterOf("l1.bias")] = -60;  // zero by algebra, so Adam moves it by noise or not at all
    v.changed[run.ParameterOf("l1.bias")] = 0;
  });
}

TEST(HealthyControls, ZeroInitialisedBranch) {
  SyntheticRun run;
  for (ParameterInitEntry& init : run.topology.parameter_inits) {
    if (run.topology.sites[init.site].name == "l2.weight") init.sum_squares = 0;
  }
  ExpectHealthy(run, [&](StepValues& v) {
    if (v.step == 0) v.gradient_level[run.ParameterOf("l1.weight")] = -60;  // nothing flows back through a zero weight
    const float grown = std::min(0.0F, -8.0F + 0.25F * static_cast<float>(v.step));
    v.parameter_level[run.ParameterOf("l2.weight")] += grown;
  });
}

TEST(HealthyControls, AmpSkipsSteps) {
  const SyntheticRun run;
  ExpectHealthy(run, [&](StepValues& v) {
    v.loss_scale = v.step < 4 ? std::exp2(16.0F - static_cast<float>(v.step)) : std::exp2(12.0F);
    if (v.step >= 200) v.loss_scale *= 2;
    if (v.step >= 4 && v.step != 200) return;
    v.applied = false;
    v.found_inf = true;
    std::fill(v.changed.begin(), v.changed.end(), std::uint8_t{0});
    for (std::uint32_t i = 0; i < run.NodeOf("a2"); ++i) v.backward_nan[i] = 4;
  });
}

TEST(HealthyControls, FrozenParameters) {
  SyntheticRun run;
  for (SiteEntry& site : run.topology.sites) {
    if (site.role == SiteRole::kParameter && site.module == "l0") site.requires_grad = false;
  }
  ExpectHealthy(run, [&](StepValues& v) {
    v.requires_grad[run.NodeOf("l0")] = 0;
    for (const char* name : {"l0.weight", "l0.bias"}) {
      v.changed[run.ParameterOf(name)] = 0;
      v.has_gradient[run.ParameterOf(name)] = 0;
    }
  });
}

// Micro-batches are merged before the engine; what it sees is more elements a step, and a size that changes.
TEST(HealthyControls, GradientAccumulationAndBatchRamp) {
  const SyntheticRun run;
  ExpectHealthy(run, [&](StepValues& v) {
    const float factor = v.step < 120 ? 1.0F : v.step < 240 ? 4.0F : 16.0F;
    for (float& numel : v.numel) numel *= factor;
    v.root_level -= std::log2(factor);  // mean-reduced: a gradient element is 1/batch
  });
}

TEST(HealthyControls, GradientsClearedBetweenForwardAndBackward) {
  const SyntheticRun run;
  ExpectHealthy(run, [&](StepValues& v) { v.dirty = v.step > 0; });
}

// Plain SGD on a plateau: nothing happens for long, then every layer grows together and the loss starts to fall.
TEST(HealthyControls, LearningTakesOff) {
  const SyntheticRun run;
  const auto take_off = [&](StepValues& v) {
    const float since = v.step < 80 ? 0.0F : static_cast<float>(v.step - 80);
    // One layer of many grows by little; all of them together by two binades, over twenty steps.
    for (float& gain : v.forward_gain) gain += std::min(0.04F * since, 0.8F);
    v.loss *= std::exp2(-0.05F * std::min(since, 40.0F));
  };
  EngineDriver driver(run);
  driver.Run(0, 160, take_off);
  const Diagnosis learning = driver.engine.Diagnose();
  EXPECT_EQ(VerdictName(learning.verdict), "HEALTHY");
  ASSERT_EQ(learning.notices.size(), 1u);
  EXPECT_EQ(learning.notices.front().kind, HypothesisKind::ACTIVATION_SHIFT);
  // The same drift with a loss that does not like it stays open.
  EngineDriver worried(run);
  worried.Run(0, 160, [&](StepValues& v) {
    take_off(v);
    if (v.step >= 100) v.loss *= 4;
  });
  EXPECT_NE(VerdictName(worried.engine.Diagnose().verdict), "HEALTHY");
}

// Two binades over forty steps in one layer, as in the discriminator of a GAN that has found its balance.
TEST(HealthyControls, ALayerThatLearnsByItsUsualUpdates) {
  const SyntheticRun run;
  const auto drifting = [&](const char* module, float updates, float loss) {
    EngineDriver driver(run);
    driver.Run(0, 160, [&](StepValues& v) {
      const float since = v.step < 80 ? 0.0F : static_cast<float>(v.step - 80);
      v.update_level[run.ParameterOf("l2.weight")] += 2;
      v.forward_gain[run.NodeOf(module)] -= std::min(0.06F * since, 2.4F);
      if (v.step < 80) return;
      v.update_level[run.ParameterOf("l2.weight")] += updates;
      v.loss *= loss;
    });
    return VerdictName(driver.engine.Diagnose().verdict);
  };
  EXPECT_EQ(drifting("l2", 0, 1), "HEALTHY");
  // It has nothing that could learn, the updates are other ones than before, the loss minds.
  EXPECT_EQ(drifting("a2", 0, 1), "FAULT");
  EXPECT_EQ(drifting("l2", 5, 1), "FAULT");
  EXPECT_EQ(drifting("l2", 0, 4), "FAULT");
}

// A margin that every sample of the batch keeps: the loss is zero, and so is every gradient.
TEST(HealthyControls, ABatchWithoutLoss) {
  const SyntheticRun run;
  ExpectHealthy(run, [](StepValues& v) {
    if (v.step < 60 || v.step % 7 != 0) return;
    v.loss = 0;
    v.root_level = -100;
  });
}

// Descent that has arrived: rate times gradient is far below the last place of the weight, and rounds to nothing.
TEST(HealthyControls, ConvergedWeightsNeedNotChange) {
  const SyntheticRun run;
  ExpectHealthy(run, [&](StepValues& v) {
    if (v.step < 100) return;
    v.root_level = -20;
    for (std::uint32_t i = 0; i < run.parameter_count(); ++i) {
      v.gradient_level[i] = -22;
      v.Freeze(i, 99);
    }
  });
}

// nn.Linear(1, 1): a lone element has nothing to be unlike.
TEST(HealthyControls, AWeightOfOneElement) {
  SyntheticRun run;
  for (ParameterInitEntry& init : run.topology.parameter_inits) {
    SiteEntry& site = run.topology.sites[init.site];
    if (site.name != "l3.weight") continue;
    site.shape = {1, 1};
    init.numel = 1;
    init.sum = 0.125;
    init.sum_squares = 0.125 * 0.125;
  }
  EngineDriver driver(run);
  driver.Run(0, 30);
  EXPECT_FALSE(driver.Has(HypothesisKind::INIT_SYMMETRIC));
}

// A loss may come down through zero (a likelihood) or scatter about it.
TEST(HealthyControls, LossesBelowZero) {
  const SyntheticRun run;
  ExpectHealthy(run, [](StepValues& v) { v.loss = 2.0F - 0.01F * static_cast<float>(v.step); });
  ExpectHealthy(run, [](StepValues& v) { v.loss = v.step % 3 == 0 ? -0.5F : 0.75F * v.loss; });
}

// A single batch that the network does not fit, and nothing comes of it.
TEST(HealthyControls, OneBatchWithAHighLoss) {
  const SyntheticRun run;
  EngineDriver driver(run);
  const auto one_batch = [](StepValues& v) {
    v.root_level = -10;
    if (v.step == 100) v.loss *= 40;
  };
  driver.Run(0, 150, one_batch);
  const Diagnosis diagnosis = driver.engine.Diagnose();
  EXPECT_EQ(VerdictName(diagnosis.verdict), "HEALTHY");
  ASSERT_EQ(diagnosis.notices.size(), 1u);
  EXPECT_EQ(diagnosis.notices.front().kind, HypothesisKind::LOSS_SPIKE);
  EXPECT_EQ(diagnosis.notices.front().step, 100u);
}

// Early in memorisation the loss and its gradient fall for a hundred steps; a dead layer later is not their doing.
TEST(HealthyControls, AFallingGradientAtTheSinkIsNoCause) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 150, [&](StepValues& v) {
    v.root_level = -10.0F - (v.step < 70 ? 0.0F : 0.06F * static_cast<float>(v.step - 70));
    v.loss *= std::exp2(v.root_level + 10);
    if (v.step >= 106) v.dead_share[run.NodeOf("a1")] = 1, v.forward_gain[run.NodeOf("a1")] -= 4;
  });
  EXPECT_EQ(driver.Lead().kind, HypothesisKind::DEAD_UNITS);
  EXPECT_EQ(driver.Lead().step, 106u);
}

// Where the agent could look at nothing (a device it cannot read), nothing is known.
TEST(HealthyControls, NothingObservedIsNotHealth) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 100, [&](StepValues& v) { std::fill(v.absent.begin(), v.absent.end(), std::uint8_t{1}); });
  EXPECT_EQ(VerdictName(driver.engine.Diagnose().verdict), "INCOMPLETE_DATA");
}

TEST(HealthyControls, WarmRestartsOfTheLearningRate) {
  const SyntheticRun run;
  ExpectHealthy(run, [&](StepValues& v) {
    const float angle = 3.14159F * static_cast<float>(v.step % 60) / 60.0F;
    v.learning_rate = 1e-3F * (0.5F + 0.5F * std::cos(angle));
    for (float& level : v.update_level) level += std::log2(v.learning_rate / 1e-3F);
  });
}

TEST(HealthyControls, ScheduleThatDecaysToZero) {
  const SyntheticRun run;
  ExpectHealthy(run, [&](StepValues& v) {
    v.learning_rate = std::max(0.0F, 1e-3F * (1.0F - static_cast<float>(v.step) / 380.0F));
    if (v.learning_rate == 0) std::fill(v.changed.begin(), v.changed.end(), std::uint8_t{0});
  });
}

TEST(HealthyControls, ExpertThatSeesAVaryingShareOfTheBatch) {
  const SyntheticRun run;
  ExpectHealthy(run, [&](StepValues& v) {
    const std::uint32_t expert = run.NodeOf("a1");
    v.absent[expert] = v.step % 3 == 0 ? 1 : 0;
    v.numel[expert] = static_cast<float>(1 + v.step * 37 % 900);
    v.dead_share[expert] = v.step % 5 == 0 && v.step > 100 ? 1.0F : 0.05F;
  });
}

TEST(HealthyControls, SlowDriftOfEveryLevel) {
  const SyntheticRun run;
  ExpectHealthy(run, [&](StepValues& v) {
    for (float& gain : v.forward_gain) gain += 0.004F * static_cast<float>(std::min<std::uint64_t>(v.step, 300));
  });
}

TEST(HealthyControls, DroppedRecordsAreNotSilence) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kSteps, [&](StepValues& v) {
    v.absent[run.NodeOf("a1")] = v.step > 100 ? 1 : 0;
    v.missing = v.step > 100 ? 2 : 0;
  });
  const Diagnosis diagnosis = driver.engine.Diagnose();
  EXPECT_EQ(VerdictName(diagnosis.verdict), "HEALTHY");
  EXPECT_TRUE(diagnosis.blind_spots.empty());
}

TEST(HealthyControls, SilentSiteIsABlindSpotAndNoFault) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kSteps, [&](StepValues& v) { v.absent[run.NodeOf("a1")] = v.step > 100 ? 1 : 0; });
  const Diagnosis diagnosis = driver.engine.Diagnose();
  EXPECT_EQ(VerdictName(diagnosis.verdict), "HEALTHY");
  ASSERT_EQ(diagnosis.blind_spots.size(), 1U);
  EXPECT_EQ(diagnosis.blind_spots.front().site, run.NodeOf("a1"));
  EXPECT_EQ(diagnosis.blind_spots.front().step, 101U);
}

TEST(HealthyControls, FewStepsAreIncompleteData) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 9);
  EXPECT_EQ(VerdictName(driver.engine.Diagnose().verdict), "INCOMPLETE_DATA");
  driver.Run(9, 10);
  EXPECT_EQ(VerdictName(driver.engine.Diagnose().verdict), "HEALTHY");
}

}  // namespace
}  // namespace neuraldbg::testing
