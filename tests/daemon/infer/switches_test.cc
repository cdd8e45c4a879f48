// What is switched over in mid-run by one line of code: detach() and eval(). Exact, with the place and the first step.
#include <gtest/gtest.h>

#include "tests/daemon/infer/engine_driver.h"

namespace neuraldbg::testing {
namespace {

constexpr std::uint64_t kOnset = 60;

// From `from` on nothing behind the output of `node` gets a gradient, although weights behind it keep requires_grad up.
void Cut(const SyntheticRun& run, StepValues& v, const char* module, bool parameters) {
  v.cut[run.NodeOf(module)] = 1;
  if (!parameters) return;
  for (std::uint32_t i = 0; i < run.parameter_count(); ++i) {
    v.has_gradient[i] = i > run.ParameterOf("l1.bias") ? 1 : 0;
  }
}

TEST(GraphCut, ACutBehindWeightsIsNamedWithItsFirstStep) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 3, [&](StepValues& v) {
    if (v.step >= kOnset) Cut(run, v, "a1", true);
  });
  const Diagnosis diagnosis = driver.engine.Diagnose();
  EXPECT_EQ(VerdictName(diagnosis.verdict), "FAULT");
  EXPECT_EQ(HypothesisKindName(driver.Lead().kind), "NO_GRADIENT");
  EXPECT_EQ(driver.Lead().module, "a1");
  EXPECT_EQ(driver.Lead().step, kOnset);
  EXPECT_LE(driver.Lead().detected_at_step, kOnset + 1);
}

TEST(GraphCut, BetweenTwoModulesItIsTheCodeThatCallsThem) {
  SyntheticRun run;
  const std::uint32_t act = run.NodeOf("a1"), down = run.NodeOf("l2");
  run.topology.sites[act].module = "blocks.1.act";
  run.topology.sites[down].module = "blocks.1.down";
  EngineDriver driver(run);
  driver.Run(0, kOnset + 30, [&](StepValues& v) {
    if (v.step < kOnset) return;
    v.cut[act] = 1;
    for (std::uint32_t i = 0; i <= run.ParameterOf("l1.bias"); ++i) v.has_gradient[i] = 0;
  });
  EXPECT_EQ(HypothesisKindName(driver.Lead().kind), "NO_GRADIENT");
  EXPECT_EQ(driver.Lead().module, "blocks.1");
  EXPECT_EQ(driver.Lead().step, kOnset);
  EXPECT_TRUE(driver.engine.Diagnose().blind_spots.empty()) << "what the cut explains is not unknown";
}

TEST(GraphCut, InTheModelsOwnCodeItIsTheLastModuleBeforeIt) {
  SyntheticRun run;
  const std::uint32_t glue = run.NodeOf("l2");
  run.topology.sites[glue].role = SiteRole::kInput;  // owner: the model itself
  EngineDriver driver(run);
  driver.Run(0, kOnset + 3, [&](StepValues& v) {
    if (v.step >= kOnset) Cut(run, v, "a1", true);
  });
  EXPECT_EQ(HypothesisKindName(driver.Lead().kind), "NO_GRADIENT");
  EXPECT_EQ(driver.Lead().module, "a1");
}

TEST(GraphCut, RecordsThatStayAwayFromParametersWithGradientAreABlindSpot) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 30, [&](StepValues& v) {
    if (v.step >= kOnset) Cut(run, v, "a1", false);
  });
  EXPECT_FALSE(driver.Has(HypothesisKind::NO_GRADIENT));
  EXPECT_FALSE(driver.engine.Diagnose().blind_spots.empty());
}

TEST(GraphCut, ALossThatIsTakenInEveryThirdStepIsNone) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, kOnset + 30, [&](StepValues& v) {
    if (v.step % 3 != 0) Cut(run, v, "a1", true);
  });
  EXPECT_FALSE(driver.Has(HypothesisKind::NO_GRADIENT));
}

TEST(ModuleMode, AModuleThatIsLeftInEvaluationModeIsNamed) {
  SyntheticRun run;
  const std::uint32_t dropout = run.NodeOf("a1");
  run.topology.sites[dropout].module_kind = "Dropout";
  EngineDriver driver(run);
  driver.Run(0, kOnset + 3, [&](StepValues& v) { v.evaluation[dropout] = v.step >= kOnset ? 1 : 0; });
  EXPECT_EQ(VerdictName(driver.engine.Diagnose().verdict), "FAULT");
  EXPECT_EQ(HypothesisKindName(driver.Lead().kind), "ACTIVATION_SHIFT");
  EXPECT_EQ(driver.Lead().module, "a1");
  EXPECT_EQ(driver.Lead().step, kOnset);
  ASSERT_FALSE(driver.Lead().evidence.empty());
  EXPECT_NE(driver.Lead().evidence[0].note.find("mode"), std::string::npos);
}

TEST(ModuleMode, ItIsTheOutermostModuleThatChanged) {
  SyntheticRun run;
  const std::uint32_t first = run.NodeOf("l1"), dropout = run.NodeOf("a1"), norm = run.NodeOf("l2");
  run.topology.sites[first].module = "block.fc";
  run.topology.sites[dropout].module = "block.drop";
  run.topology.sites[norm].module = "block.norm";
  run.topology.sites[dropout].module_kind = "Dropout2d";
  run.topology.sites[norm].module_kind = "BatchNorm2d";
  EngineDriver part(run), whole(run);
  part.Run(0, kOnset + 3, [&](StepValues& v) {
    for (const std::uint32_t node : {first, dropout, norm}) v.evaluation[node] = v.step >= kOnset ? 1 : 0;
  });
  EXPECT_EQ(part.Lead().module, "block");
  EXPECT_EQ(part.Lead().evidence[0].observed, 2) << "the linear layer does the same in both modes";
  whole.Run(0, kOnset + 3, [&](StepValues& v) { v.evaluation.assign(v.evaluation.size(), v.step >= kOnset ? 1 : 0); });
  EXPECT_EQ(whole.Lead().module, "") << "the model itself";
  EXPECT_EQ(whole.Lead().step, kOnset);
}

TEST(ModuleMode, FrozenFromTheStartOrWithoutEffectIsHealthy) {
  SyntheticRun run;
  const std::uint32_t norm = run.NodeOf("a1");
  run.topology.sites[norm].module_kind = "BatchNorm1d";
  EngineDriver frozen(run), without_effect(run), skipped(run);
  frozen.Run(0, kOnset + 30, [&](StepValues& v) { v.evaluation[norm] = 1; });
  EXPECT_EQ(VerdictName(frozen.engine.Diagnose().verdict), "HEALTHY");
  without_effect.Run(0, kOnset + 30, [&](StepValues& v) {
    v.evaluation.assign(v.evaluation.size(), v.step >= kOnset ? 1 : 0);
    v.evaluation[norm] = 0;
  });
  EXPECT_EQ(VerdictName(without_effect.engine.Diagnose().verdict), "HEALTHY");
  skipped.Run(0, kOnset + 30, [&](StepValues& v) {
    v.applied = v.step != kOnset;
    v.evaluation[norm] = v.step == kOnset ? 1 : 0;
  });
  EXPECT_EQ(VerdictName(skipped.engine.Diagnose().verdict), "HEALTHY");
}

}  // namespace
}  // namespace neuraldbg::testing
