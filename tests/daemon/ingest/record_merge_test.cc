// Merge arithmetic, checked against what one record over all elements would say.
#include "daemon/ingest/record_merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/daemon/ingest/record_builder.h"

namespace neuraldbg {
namespace {

TEST(RecordMergeTest, Tensor_PartsAddUpToTheWhole) {
  Record a = TensorRecord(0, 1, 2.0, 10);
  Record b = TensorRecord(0, 1, -4.0, 30);
  a.tensor.nan_count = 2;  // of the ten
  a.tensor.sum = 16, a.tensor.sum_abs = 16, a.tensor.sum_squares = 32;
  a.tensor.dead_units = 3;
  b.tensor.dead_units = 1;
  b.tensor.zero_count = 7;
  MergedRecord merged = StartMerge(a);
  Merge(merged, b);
  const Sample sample = ToSample(merged);
  EXPECT_EQ(sample.Get(Statistic::kNumel), 40.0f);
  EXPECT_EQ(sample.Get(Statistic::kNan), 2.0f);
  EXPECT_EQ(sample.Get(Statistic::kZero), 7.0f);
  EXPECT_EQ(sample.Get(Statistic::kDeadUnits), 1.0f);  // alive in one call is alive
  EXPECT_EQ(sample.Get(Statistic::kUnits), 4.0f);
  EXPECT_EQ(sample.Get(Statistic::kCalls), 2.0f);
  EXPECT_EQ(sample.Get(Statistic::kMaxAbs), 4.0f);
  const double finite = 38;
  EXPECT_EQ(sample.Get(Statistic::kMean), static_cast<float>((16.0 - 120.0) / finite));
  EXPECT_EQ(sample.Get(Statistic::kMeanAbs), static_cast<float>((16.0 + 120.0) / finite));
  EXPECT_EQ(sample.Get(Statistic::kRms), static_cast<float>(std::sqrt((32.0 + 480.0) / finite)));
  EXPECT_TRUE(sample.has_bits);
  EXPECT_EQ(sample.bits, 6u);
}

TEST(RecordMergeTest, Tensor_FieldMissingInOnePartIsMissing) {
  const Record a = TensorRecord(0, 1, 2.0);
  Record b = TensorRecord(0, 1, 2.0);
  b.validity &= ~(ValidityBit(6) | ValidityBit(12));
  MergedRecord merged = StartMerge(a);
  Merge(merged, b);
  const Sample sample = ToSample(merged);
  EXPECT_FALSE(sample.Has(Statistic::kDeadUnits));
  EXPECT_FALSE(sample.has_bits);
  EXPECT_TRUE(sample.Has(Statistic::kRms));
}

TEST(RecordMergeTest, Tensor_NothingFiniteHasNoMean) {
  Record a = TensorRecord(0, 1, 0.0, 5);
  a.tensor.nan_count = 5;
  const Sample sample = ToSample(StartMerge(a));
  EXPECT_FALSE(sample.Has(Statistic::kMean));
  EXPECT_FALSE(sample.Has(Statistic::kMaxAbs));
  EXPECT_EQ(sample.Get(Statistic::kNan), 5.0f);
}

TEST(RecordMergeTest, Tensor_CountsSaturate) {
  Record a = TensorRecord(0, 1, 1.0);
  a.tensor.zero_count = std::numeric_limits<std::uint32_t>::max() - 1;
  MergedRecord merged = StartMerge(a);
  Merge(merged, a);
  EXPECT_EQ(merged.record.tensor.zero_count, std::numeric_limits<std::uint32_t>::max());
}

TEST(RecordMergeTest, Loss_IsTheMeanOverCallsAndKeepsNan) {
  Record a = MakeRecord(RecordKind::kLoss, Phase::kLoss, 0, 2, kTrainingPass);
  a.loss.value = 3;
  a.loss.label_count = 4;
  a.loss.label_sum = 8;
  a.loss.logsumexp_mean = 1;
  Record b = a;
  b.loss.value = 1;
  b.loss.logsumexp_mean = 4;
  MergedRecord merged = StartMerge(a);
  Merge(merged, b);
  Merge(merged, b);
  Sample sample = ToSample(merged);
  EXPECT_EQ(sample.Get(Statistic::kLoss), static_cast<float>(5.0 / 3.0));
  EXPECT_EQ(sample.Get(Statistic::kLabelMean), 2.0f);
  EXPECT_EQ(sample.Get(Statistic::kLogsumexp), 3.0f);
  b.loss.value = std::nan("");
  Merge(merged, b);
  sample = ToSample(merged);
  EXPECT_TRUE(sample.Has(Statistic::kLoss));
  EXPECT_TRUE(std::isnan(sample.Get(Statistic::kLoss)));
}

TEST(RecordMergeTest, Parameter_StatesDoNotAddUp) {
  Record a = MakeRecord(RecordKind::kParameter, Phase::kParameter, 0, 3, 0);
  a.parameter.numel = 4;
  a.parameter.value_sum_squares = 16;
  a.parameter.gradient_sum_squares = 4;
  a.parameter.update_sum_squares = 1;
  a.parameter.gradient_dot_update = -2;
  MergedRecord merged = StartMerge(a);
  Merge(merged, a);
  const Sample sample = ToSample(merged);
  EXPECT_EQ(sample.Get(Statistic::kNumel), 4.0f);
  EXPECT_EQ(sample.Get(Statistic::kRms), 2.0f);
  EXPECT_EQ(sample.Get(Statistic::kGradientRms), 1.0f);
  EXPECT_EQ(sample.Get(Statistic::kUpdateRms), 0.5f);
  EXPECT_EQ(sample.Get(Statistic::kGradientDotUpdate), -1.0f);  // a cosine
}

TEST(RecordMergeTest, Parameter_WithoutUpdateHasNoCosine) {
  Record a = MakeRecord(RecordKind::kParameter, Phase::kParameter, 0, 3, 0);
  a.parameter.numel = 4;
  a.parameter.gradient_sum_squares = 4;
  const Sample sample = ToSample(StartMerge(a));
  EXPECT_FALSE(sample.Has(Statistic::kGradientDotUpdate));
  EXPECT_EQ(sample.Get(Statistic::kUpdateRms), 0.0f);  // measured, and zero
}

TEST(RecordMergeTest, Router_MeansAreWeighted) {
  Record a = MakeRecord(RecordKind::kRouter, Phase::kForward, 0, 3, kTrainingPass);
  a.router.load_max = 0.5;
  a.router.tokens = 30;
  a.router.unused_experts = 2;
  Record b = a;
  b.router.load_max = 0.9;
  b.router.tokens = 10;
  b.router.unused_experts = 1;
  MergedRecord merged = StartMerge(a);
  Merge(merged, b);
  const Sample sample = ToSample(merged);
  EXPECT_FLOAT_EQ(sample.Get(Statistic::kLoadMax), 0.6f);
  EXPECT_EQ(sample.Get(Statistic::kUnusedExperts), 1.0f);
  EXPECT_EQ(sample.Get(Statistic::kTokens), 40.0f);
}

TEST(RecordMergeTest, Step_DurationsAreSeconds) {
  Record a = StepRecord(0, 0, 1);
  a.step_end.duration_ns = 1'500'000'000;
  const Sample sample = ToSample(StartMerge(a));
  EXPECT_EQ(sample.Get(Statistic::kDurationSeconds), 1.5f);
  EXPECT_EQ(sample.Get(Statistic::kSamples), 32.0f);
}

}  // namespace
}  // namespace neuraldbg
