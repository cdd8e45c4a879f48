// Health of gradient norms alone: what is normal is learnt, what cannot be normal is told at once.
// Method: series of a known level with known excursions.
#include "agent/src/gradient_health.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "agent/src/capi.h"

namespace neuraldbg {
namespace {

// Noise of a tenth of a binade about 1.
double Normal(int step) { return std::exp2(0.1 * std::sin(12.9898 * step)); }

GradientNormSeries Learnt() {
  GradientNormSeries series;
  for (int step = 0; step < 100; ++step) series.Observe(Normal(step));
  return series;
}

TEST(GradientHealthTest, Health_IsUnknownUntilThereIsANormal) {
  GradientNormSeries series;
  std::set<GradientHealth> early, late;
  for (int step = 0; step < 100; ++step) {
    (step < static_cast<int>(threshold::kMinimumSamples) ? early : late).insert(series.Observe(Normal(step)));
  }
  EXPECT_EQ(early, std::set{GradientHealth::kUnknown});
  EXPECT_TRUE(late.contains(GradientHealth::kHealthy));
  EXPECT_FALSE(late.contains(GradientHealth::kVanishing) || late.contains(GradientHealth::kExploding));
}

TEST(GradientHealthTest, ANorm_FarFromNormalIsNamedByItsSide) {
  const GradientNormSeries series = Learnt();
  EXPECT_EQ(series.Classify(1.1), GradientHealth::kHealthy);
  EXPECT_EQ(series.Classify(1e-3), GradientHealth::kVanishing);
  EXPECT_EQ(series.Classify(1e3), GradientHealth::kExploding);
}

TEST(GradientHealthTest, NothingAndNonfinite_NeedNoNormal) {
  GradientNormSeries series;
  EXPECT_EQ(series.Observe(0), GradientHealth::kVanishing);
  EXPECT_EQ(series.Observe(std::numeric_limits<double>::infinity()), GradientHealth::kNonfinite);
  EXPECT_EQ(series.Observe(std::nan("")), GradientHealth::kNonfinite);
}

TEST(GradientHealthTest, AskingWithoutLearning_ChangesNothing) {
  GradientNormSeries series = Learnt();
  for (int again = 0; again < 200; ++again) EXPECT_EQ(series.Classify(1e-3), GradientHealth::kVanishing);
  EXPECT_EQ(series.Observe(Normal(100)), GradientHealth::kHealthy);
}

TEST(GradientHealthTest, AnExcursion_DoesNotBecomeNormalAtOnce) {
  GradientNormSeries series = Learnt();
  for (int step = 0; step < 30; ++step) EXPECT_EQ(series.Observe(1e-3), GradientHealth::kVanishing) << step;
}

TEST(GradientHealthTest, CInterface_SaysTheNamesAndBearsNull) {
  ndbg_gradient_norms* norms = ndbg_gradient_norms_create();
  EXPECT_EQ(std::string(ndbg_gradient_norms_observe(norms, 0)), "vanishing");
  EXPECT_EQ(std::string(ndbg_gradient_norms_classify(norms, 1)), "unknown");
  ndbg_gradient_norms_destroy(norms);
  EXPECT_EQ(std::string(ndbg_gradient_norms_observe(nullptr, 0)), "unknown");
  EXPECT_EQ(std::string(ndbg_gradient_norms_classify(nullptr, 0)), "unknown");
  ndbg_gradient_norms_destroy(nullptr);
}

}  // namespace
}  // namespace neuraldbg
