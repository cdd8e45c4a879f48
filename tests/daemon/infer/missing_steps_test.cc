// Steps that nobody received: said, and never taken for health.
#include <gtest/gtest.h>

#include <string>

#include "tests/daemon/infer/engine_driver.h"

namespace neuraldbg::testing {
namespace {

const Notice* NoticeOfMissing(const Diagnosis& diagnosis) {
  const Notice* found = nullptr;
  for (const Notice& notice : diagnosis.notices) {
    if (notice.kind == HypothesisKind::BLIND_SPOT) found = &notice;
  }
  return found;
}

TEST(MissingSteps, AFewAreANotice) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 70);
  driver.Run(80, 120);
  const Diagnosis diagnosis = driver.engine.Diagnose();
  EXPECT_EQ(VerdictName(diagnosis.verdict), "HEALTHY");
  const Notice* notice = NoticeOfMissing(diagnosis);
  ASSERT_NE(notice, nullptr);
  EXPECT_EQ(notice->step, 70U);
  EXPECT_NE(notice->text.find("Of the steps 70 to 79, 10 were not received"), std::string::npos) << notice->text;
}

TEST(MissingSteps, HealthOfTheSmallerPartIsNotHealthOfTheRun) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 60);
  driver.Run(300, 310);
  EXPECT_EQ(VerdictName(driver.engine.Diagnose().verdict), "INCOMPLETE_DATA");
  driver.Run(310, 600);
  EXPECT_EQ(VerdictName(driver.engine.Diagnose().verdict), "HEALTHY") << "most of it was seen after all";
}

TEST(MissingSteps, AFaultIsAFaultWhateverIsMissing) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 60);
  driver.Run(300, 310, [&](StepValues& v) { v.learning_rate = 0; });
  EXPECT_EQ(VerdictName(driver.engine.Diagnose().verdict), "FAULT");
  EXPECT_NE(NoticeOfMissing(driver.engine.Diagnose()), nullptr);
}

TEST(MissingSteps, ARunMayBeginAnywhereAndARestartedRankToo) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(1000, 1060);
  EXPECT_EQ(NoticeOfMissing(driver.engine.Diagnose()), nullptr);
  RankKey next;
  next.incarnation = 1;
  driver.engine.SetTopology(next, run.topology);
  StepFrame frame = run.Frame(5000);
  frame.rank = next;
  driver.engine.OnFrame(frame);
  EXPECT_EQ(NoticeOfMissing(driver.engine.Diagnose()), nullptr);
}

}  // namespace
}  // namespace neuraldbg::testing
