#include "shared/series/series.h"

#include <gtest/gtest.h>

#include <limits>

namespace neuraldbg {
namespace {

constexpr float kMissingValue = std::numeric_limits<float>::quiet_NaN();

class SeriesTest : public ::testing::Test {
 protected:
  void Feed(float value) {
    series_.Observe(SeriesType::kForwardLevel, tick_++, value, threshold::kMinimumSamples, threshold::kEntryDelay);
  }
  void Warm(int steps = 80) {
    for (int i = 0; i < steps; ++i) Feed(tick_ % 2 == 0 ? 1.0F : 1.1F);
  }
  Series series_;
  std::uint64_t tick_ = 0;
};

TEST_F(SeriesTest, SaysNothingBeforeItHasABaseline) {
  for (int i = 0; i < 20; ++i) Feed(1);
  Feed(100);
  EXPECT_EQ(series_.Evidence(tick_ - 1), 0);
  EXPECT_FALSE(std::isfinite(series_.Deviation(tick_ - 1)));
}

TEST_F(SeriesTest, WhatWasNotSeenBeforeALateStartIsMissing) {
  tick_ = 100;
  Feed(3);
  EXPECT_EQ(series_.Value(100), 3);
  for (std::uint64_t tick = 101 - Series::kHistory; tick < 100; ++tick) {
    EXPECT_TRUE(std::isnan(series_.Value(tick))) << tick;
    EXPECT_TRUE(std::isnan(series_.Deviation(tick))) << tick;
  }
}

TEST_F(SeriesTest, OneLargeSampleIsAnAlarmAndASmallOneNeedsASecond) {
  Warm();
  Feed(1 + 4.5F);  // between 1 and 2.5 times the alarm level
  EXPECT_TRUE(series_.Flagged());
  EXPECT_FALSE(series_.Hot());
  Feed(1);
  Feed(1 + 4.5F);
  EXPECT_TRUE(series_.Hot()) << "two of the last three";
  Warm();
  Feed(20);
  EXPECT_TRUE(series_.Hot());
}

TEST_F(SeriesTest, FlaggedSamplesDoNotTeachTheBaseline) {
  Warm();
  const double center = series_.center();
  for (int i = 0; i < 30; ++i) Feed(12);
  EXPECT_DOUBLE_EQ(series_.center(), center);
  EXPECT_TRUE(series_.Hot());
}

TEST_F(SeriesTest, ALastingChangeBecomesTheNewNormal) {
  Warm();
  for (int i = 0; i < 150; ++i) Feed(12);
  EXPECT_FALSE(series_.Flagged());
  EXPECT_NEAR(series_.center(), 12, 0.2);
}

TEST_F(SeriesTest, ARampOfSixPercentAStepIsCaught) {
  Series gain;
  std::uint64_t tick = 0;
  const auto feed = [&](float value) {
    gain.Observe(SeriesType::kForwardGain, tick, value, threshold::kMinimumSamples, threshold::kEntryDelay);
    ++tick;
  };
  for (int i = 0; i < 80; ++i) feed(i % 2 == 0 ? 1.0F : 1.1F);
  bool caught = false;
  float level = 1;
  for (int i = 0; i < 60 && !caught; ++i) {
    feed(level += 0.084F);  // log2 1.06
    caught = gain.Hot();
  }
  EXPECT_TRUE(caught) << "samples enter late, so the ramp must not teach its own baseline";
}

TEST_F(SeriesTest, MissingIsNeitherZeroNorALevel) {
  Warm();
  const std::uint32_t samples = series_.samples();
  for (int i = 0; i < 12; ++i) Feed(kMissingValue);
  EXPECT_FALSE(series_.Flagged());
  for (int i = 0; i < 12; ++i) Feed(kMissingValue);
  EXPECT_LE(series_.samples(), samples + threshold::kEntryDelay);
  Feed(1);
  EXPECT_FALSE(series_.Flagged());
}

TEST_F(SeriesTest, HistoryEndsAfterItsLength) {
  Warm();
  EXPECT_TRUE(std::isfinite(series_.Value(tick_ - 1)));
  EXPECT_TRUE(std::isfinite(series_.Value(tick_ - Series::kHistory)));
  EXPECT_FALSE(std::isfinite(series_.Value(tick_ - Series::kHistory - 1)));
  EXPECT_FALSE(std::isfinite(series_.Value(tick_))) << "the future is missing";
}

TEST(SeriesRules, LossAndSharesAlarmUpwardOnly) {
  for (const SeriesType type : {SeriesType::kLoss, SeriesType::kDeadShare, SeriesType::kSinkLevel}) {
    Series series;
    std::uint64_t tick = 0;
    for (; tick < 80; ++tick) series.Observe(type, tick, 10 + 0.01F * static_cast<float>(tick % 2), 32, 10);
    series.Observe(type, tick++, 0, 32, 10);
    EXPECT_FALSE(series.Flagged());
    series.Observe(type, tick++, 30, 32, 10);
    EXPECT_TRUE(series.Flagged());
  }
}

}  // namespace
}  // namespace neuraldbg
