#include "shared/series/baseline.h"

#include <gtest/gtest.h>

#include <cmath>

namespace neuraldbg {
namespace {

Baseline Filled(int count, float (*value)(int)) {
  Baseline baseline;
  for (int i = 0; i < count; ++i) baseline.Admit(value(i));
  baseline.Refresh();
  return baseline;
}

TEST(Baseline, CentreIsTheMedianOfTheWindow) {
  const Baseline odd = Filled(5, [](int i) { return static_cast<float>(i == 2 ? 1000 : i); });
  EXPECT_FLOAT_EQ(static_cast<float>(odd.center()), 3);
  const Baseline even = Filled(4, [](int i) { return static_cast<float>(i); });
  EXPECT_FLOAT_EQ(static_cast<float>(even.center()), 1.5F);
}

TEST(Baseline, WindowForgetsTheOldest) {
  const Baseline baseline = Filled(200, [](int i) { return i < 152 ? 100.0F : 7.0F; });
  EXPECT_FLOAT_EQ(static_cast<float>(baseline.center()), 7);
  EXPECT_EQ(baseline.count(), 200U);
}

TEST(Baseline, OutliersHardlyWidenTheSpread) {
  const Baseline clean = Filled(48, [](int i) { return i % 2 == 0 ? 1.0F : 1.2F; });
  const Baseline dirty = Filled(48, [](int i) { return i % 8 == 0 ? 50.0F : i % 2 == 0 ? 1.0F : 1.2F; });
  EXPECT_NEAR(clean.sigma(0), 1.4826 * 0.1, 0.02);
  EXPECT_LT(dirty.sigma(0), 4 * clean.sigma(0));
  EXPECT_DOUBLE_EQ(clean.sigma(5), 5) << "the floor holds";
}

TEST(Baseline, AContinuedTrendIsNoDeviation) {
  const Baseline baseline = Filled(48, [](int i) { return 0.1F * static_cast<float>(i); });
  EXPECT_NEAR(baseline.Deviation(0.1 * 48, 1), 0, 0.15);
  EXPECT_NEAR(baseline.Deviation(0.1 * 58, 11), 0, 0.15);
}

TEST(Baseline, ATrendThatStopsIsNoDeviation) {
  const Baseline baseline = Filled(48, [](int i) { return 0.1F * static_cast<float>(i); });
  EXPECT_DOUBLE_EQ(baseline.Deviation(2.4, 20), 0) << "above the constant, below the line: they disagree";
}

TEST(Baseline, AJumpIsTheSmallerOfBothReadings) {
  const Baseline baseline = Filled(48, [](int i) { return 0.1F * static_cast<float>(i); });
  const double constant = 20 - baseline.center();
  const double deviation = baseline.Deviation(20, 1);
  EXPECT_GT(deviation, 14);
  EXPECT_LT(deviation, constant);
  EXPECT_LT(baseline.Deviation(-20, 1), -14);
}

}  // namespace
}  // namespace neuraldbg
