#include "daemon/infer/onset.h"

#include <gtest/gtest.h>

namespace neuraldbg {
namespace {

class OnsetTest : public ::testing::Test {
 protected:
  OnsetTest() {
    for (int i = 0; i < 80; ++i) Feed(i % 2 == 0 ? 0.0F : 0.05F);
  }
  void Feed(float value) { series_.Observe(SeriesType::kForwardGain, tick_++, value, 32, 10); }
  Series series_;
  std::uint64_t tick_ = 0;
};

TEST_F(OnsetTest, QuietSeriesHaveNone) { EXPECT_FALSE(FindOnset(series_, tick_ - 1)); }

TEST_F(OnsetTest, WalksBackOverARamp) {
  for (const float value : {0.8F, 1.2F, 1.6F, 2.0F}) Feed(value);
  const auto onset = FindOnset(series_, tick_ - 1);
  ASSERT_TRUE(onset);
  EXPECT_EQ(onset->tick, 80U);
  EXPECT_GT(onset->evidence, 1);
}

TEST_F(OnsetTest, NoiseBeforeTheJumpIsNotItsStart) {
  Feed(0.45F);  // at half the candidate level, but less than a quarter of the jump
  Feed(4);
  EXPECT_EQ(FindOnset(series_, tick_ - 1)->tick, 81U);
}

TEST_F(OnsetTest, TheOtherSignIsNotTheSameDeviation) {
  Feed(-3);
  Feed(3);
  EXPECT_EQ(FindOnset(series_, tick_ - 1)->tick, 81U);
}

TEST_F(OnsetTest, GoesBackTwelveSamplesAtMost) {
  for (int i = 0; i < 30; ++i) Feed(3);
  EXPECT_EQ(FindOnset(series_, tick_ - 1)->tick, tick_ - 1 - threshold::kLookBack);
}

}  // namespace
}  // namespace neuraldbg
