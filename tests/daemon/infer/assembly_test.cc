// Several ranks, several incidents, ranks that die and come back.
#include <gtest/gtest.h>

#include <limits>

#include "tests/daemon/infer/engine_driver.h"

namespace neuraldbg::testing {
namespace {

constexpr std::uint64_t kOnset = 90;

// Feeds the same run as several ranks, step by step; `hook` knows the rank.
void RunRanks(RunEngine& engine, const SyntheticRun& run, std::uint32_t ranks, std::uint64_t steps,
              const std::function<void(std::uint32_t, StepValues&)>& hook) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) engine.SetTopology({0, rank, 0}, run.topology);
  for (std::uint64_t step = 0; step < steps; ++step) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      StepFrame frame = run.Frame(step, [&](StepValues& v) { hook(rank, v); });
      frame.rank = {0, rank, 0};
      engine.OnFrame(frame);
    }
  }
}

TEST(Assembly, TheRankThatWasFirstIsNamedThoughAllSuffer) {
  const SyntheticRun run;
  RunEngine engine;
  RunRanks(engine, run, 4, kOnset + 5, [&](std::uint32_t rank, StepValues& v) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (rank == 2 && v.step >= kOnset) {
      for (std::uint32_t i = run.NodeOf("a1"); i < run.node_count(); ++i) v.forward_nan[i] = 1;
      v.loss = nan;
    }
    if (v.step >= kOnset) std::fill(v.value_nan.begin(), v.value_nan.end(), 1.0F);  // the all-reduce spread it
    if (v.step > kOnset) std::fill(v.forward_nan.begin(), v.forward_nan.end(), 1.0F), v.loss = nan;
  });
  const Diagnosis diagnosis = engine.Diagnose();
  ASSERT_FALSE(diagnosis.hypotheses.empty());
  EXPECT_EQ(diagnosis.hypotheses[0].rank, 2);
  EXPECT_EQ(diagnosis.hypotheses[0].module, "a1");
  EXPECT_EQ(diagnosis.ranks_seen.size(), 4U);
}

TEST(Assembly, WhatEveryRankSeesIsOneFaultOfAllRanks) {
  const SyntheticRun run;
  RunEngine engine;
  RunRanks(engine, run, 3, kOnset + 5, [](std::uint32_t, StepValues& v) {
    if (v.step == kOnset) v.learning_rate *= 100;
  });
  const Diagnosis diagnosis = engine.Diagnose();
  ASSERT_EQ(diagnosis.hypotheses.size(), 1U);
  EXPECT_EQ(diagnosis.hypotheses[0].rank, -1);
}

TEST(Assembly, StatisticalCauseShortlyBeforeExplainsTheExactFinding) {
  const SyntheticRun run;
  const auto lead = [&](std::uint64_t nan_after) {
    EngineDriver driver(run);
    driver.Run(0, kOnset + nan_after + 3, [&](StepValues& v) {
      if (v.step >= kOnset && v.step < kOnset + 6) v.forward_gain[run.NodeOf("l1")] += 3;
      if (v.step < kOnset + nan_after) return;
      for (std::uint32_t i = run.NodeOf("a3"); i < run.node_count(); ++i) v.forward_nan[i] = 1;
      v.loss = std::numeric_limits<float>::quiet_NaN();
    });
    return driver.Lead();
  };
  EXPECT_EQ(HypothesisKindName(lead(10).kind), "ACTIVATION_SHIFT");
  EXPECT_EQ(HypothesisKindName(lead(60).kind), "NONFINITE_FORWARD") << "too long ago to be its cause";
}

TEST(Assembly, IndependentFaultsAreSeparateIncidents) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 300, [&](StepValues& v) {
    if (v.step >= 90 && v.step < 95) v.forward_gain[run.NodeOf("l1")] += 3;
    if (v.step >= 200 && v.step < 205) v.backward_gain[run.NodeOf("l2")] -= 9;
  });
  const Diagnosis diagnosis = driver.engine.Diagnose();
  ASSERT_GE(diagnosis.hypotheses.size(), 2U);
  EXPECT_EQ(diagnosis.hypotheses[0].incident, 0U);
  EXPECT_EQ(diagnosis.hypotheses[0].module, "l1");
  const auto second = std::find_if(diagnosis.hypotheses.begin(), diagnosis.hypotheses.end(),
                                   [](const Hypothesis& hypothesis) { return hypothesis.incident == 1; });
  ASSERT_NE(second, diagnosis.hypotheses.end());
  EXPECT_EQ(second->module, "a2");
}

TEST(Assembly, NoNodeWithAChangeOfItsOwnIsUnsure) {
  const SyntheticRun run;
  EngineDriver driver(run);
  // The loss and what the model computes move together: something is off, and nothing here can say what.
  driver.Run(0, kOnset + 10, [&](StepValues& v) {
    if (v.step < kOnset) return;
    for (float& gain : v.forward_gain) gain += 0.4F;
    v.loss *= 16;
  });
  const Diagnosis diagnosis = driver.engine.Diagnose();
  EXPECT_FALSE(diagnosis.hypotheses.empty());
  EXPECT_EQ(VerdictName(diagnosis.verdict), "UNSURE");
}

TEST(Assembly, DeathOfARankIsSaidOnceWithThePlaceItDiedAt) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 40);
  const std::vector<LastPlace> threads = {{4711, run.NodeOf("a1"), 40, Phase::kForward},
                                          {0, run.NodeOf("l0"), 39, Phase::kBackward}};
  driver.engine.OnRankFate({}, RankFate::kDied, 39, run.NodeOf("a1"), threads);
  driver.engine.OnRankFate({}, RankFate::kDied, 39, run.NodeOf("a1"), threads);
  const Hypothesis lead = driver.Lead();
  EXPECT_EQ(HypothesisKindName(lead.kind), "RANK_DIED");
  EXPECT_EQ(lead.module, "a1");
  ASSERT_EQ(lead.evidence.size(), 3U);
  EXPECT_EQ(lead.evidence[1].site, run.NodeOf("a1"));
  EXPECT_EQ(lead.evidence[1].step, 40U);
  EXPECT_EQ(lead.evidence[1].note, "Thread 4711 did this last, in the phase FORWARD.");
  EXPECT_EQ(lead.evidence[2].note, "A thread that had ended before did this last, in the phase BACKWARD.");
  RunEngine restored;
  ASSERT_TRUE(restored.Restore(driver.engine.Snapshot()));
  EXPECT_EQ(restored.Diagnose().hypotheses.front().evidence.size(), 3U);
  const auto transitions = driver.engine.TakeTransitions();
  ASSERT_EQ(transitions.size(), 1U);
  EXPECT_EQ(transitions[0].to, "DIED");
}

TEST(Assembly, ANewIncarnationStartsItsBaselinesAnewAndKeepsWhatWasFound) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 5, [&](StepValues& v) {
    if (v.step == kOnset) v.learning_rate *= 60;
  });
  const RankKey second{0, 0, 1};
  driver.engine.SetTopology(second, run.topology);
  for (std::uint64_t step = 0; step < 60; ++step) {
    StepFrame frame = run.Frame(step, [](StepValues& v) {
      for (float& gain : v.forward_gain) gain += 5;  // another scale from the start: normal for this incarnation
    });
    frame.rank = second;
    driver.engine.OnFrame(frame);
  }
  const Diagnosis diagnosis = driver.engine.Diagnose();
  ASSERT_EQ(diagnosis.hypotheses.size(), 1U);
  EXPECT_EQ(HypothesisKindName(diagnosis.hypotheses[0].kind), "LEARNING_RATE_SPIKE");
}

TEST(Assembly, TransitionIdsAreDense) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 130, [&](StepValues& v) {
    if (v.step >= 90 && v.step < 100) v.forward_gain[run.NodeOf("l0")] += 4;
  });
  ASSERT_GT(driver.transitions.size(), 4U);
  for (std::size_t i = 0; i < driver.transitions.size(); ++i) EXPECT_EQ(driver.transitions[i].id, i);
}

}  // namespace
}  // namespace neuraldbg::testing
