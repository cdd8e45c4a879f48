#include <gtest/gtest.h>

#include "daemon/detect/detector.h"
#include "tests/daemon/detect/synthetic_run.h"

namespace neuraldbg {
namespace {

using testing::StepValues;
using testing::SyntheticRun;

class RegimeBookTest : public ::testing::Test {
 protected:
  RegimeBookTest() : graph_(run_.topology) { book_.Grow(graph_.GrowthSince(SiteGraph())); }
  void Step(bool flagged, const SyntheticRun::Hook& hook = nullptr) {
    observation_.Decode(graph_, run_.Frame(step_++, hook));
    if (flagged) book_.Propose(kSite, Phase::kForward, Regime::kShifted, Statistic::kRms, 8, 1, 2);
    book_.Settle(observation_, 3, 1, transitions_);
  }
  static constexpr std::uint32_t kSite = 2;
  SyntheticRun run_;
  SiteGraph graph_;
  RegimeBook book_;
  Observation observation_;
  std::vector<Transition> transitions_;
  std::uint64_t step_ = 0;
};

TEST_F(RegimeBookTest, EntersAtOnceAndLeavesAfterThreeQuietObservations) {
  Step(true);
  Step(true);
  for (int i = 0; i < 3; ++i) Step(false);
  ASSERT_EQ(transitions_.size(), 2U);
  EXPECT_EQ(transitions_[0].from, "HEALTHY");
  EXPECT_EQ(transitions_[0].to, "SHIFTED");
  EXPECT_EQ(transitions_[0].step, 0U);
  EXPECT_EQ(transitions_[0].rank, 3U);
  EXPECT_EQ(transitions_[0].incarnation, 1U);
  EXPECT_DOUBLE_EQ(transitions_[0].value, 8);
  EXPECT_DOUBLE_EQ(transitions_[0].expected_high, 2);
  EXPECT_EQ(transitions_[1].from, "SHIFTED");
  EXPECT_EQ(transitions_[1].to, "HEALTHY");
  EXPECT_EQ(transitions_[1].step, 4U);
}

TEST_F(RegimeBookTest, LeavingShowsTheStatisticThatItEnteredWith) {
  book_.Propose(kSite, Phase::kForward, Regime::kNonfinite, Statistic::kNan, 12, 0, 0);
  for (int i = 0; i < 4; ++i) Step(false);
  ASSERT_EQ(transitions_.size(), 2U);
  EXPECT_EQ(transitions_[1].to, "HEALTHY");
  EXPECT_EQ(transitions_[1].statistic, Statistic::kNan);
  EXPECT_EQ(transitions_[1].value, 0) << "not the level of a site whose NaN were counted";
}

TEST_F(RegimeBookTest, FlickeringIsOneTransition) {
  for (int i = 0; i < 20; ++i) Step(i % 2 == 0);
  EXPECT_EQ(transitions_.size(), 1U);
}

TEST_F(RegimeBookTest, StrongerRegimeWinsWithinAStep) {
  book_.Propose(kSite, Phase::kForward, Regime::kNonfinite, Statistic::kNan, 1, 0, 0);
  Step(true);
  ASSERT_EQ(transitions_.size(), 1U);
  EXPECT_EQ(transitions_[0].to, "NONFINITE");
  EXPECT_EQ(transitions_[0].severity, Severity::kError);
}

TEST_F(RegimeBookTest, ASiteThatWasNotObservedDoesNotRecover) {
  Step(true);
  for (int i = 0; i < 10; ++i) Step(false, [](StepValues& v) { v.absent[kSite] = 1; });
  EXPECT_EQ(transitions_.size(), 1U);
}

}  // namespace
}  // namespace neuraldbg
