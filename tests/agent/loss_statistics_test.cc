// Goal: the LOSS payload holds the value, the labels and the mean logsumexp of what was given, and claims nothing else.
#include "agent/src/loss_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace neuraldbg {
namespace {

struct Array {
  std::vector<std::int64_t> sizes, strides;
  TensorView view;
  template <typename T>
  Array(const std::vector<T>& data, DType dtype, std::vector<std::int64_t> shape)
      : sizes(std::move(shape)), strides(sizes.size(), 1) {
    for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
    view = {data.data(), dtype, static_cast<int>(sizes.size()), data.size(), sizes.data(), strides.data()};
  }
};

bool Has(const Record& record, unsigned bit) { return (record.validity & ValidityBit(bit)) != 0; }

LossInput Input(const Array& value) {
  LossInput input;
  input.value = value.view;
  input.kind = LossKind::kCrossEntropy;
  input.reduction = Reduction::kMean;
  input.ignore_index = -100;
  return input;
}

TEST(LossStatistics, CrossEntropy_CountsLabelsAndMeansLogSumExp) {
  const std::vector<float> loss{0.75f}, logits{1, 2, 3, 0, 0, 0, -1, 5, 2};
  const std::vector<std::int64_t> labels{2, -100, 1};
  const Array value(loss, DType::kFloat32, {}), scores(logits, DType::kFloat32, {3, 3}),
      targets(labels, DType::kInt64, {3});
  LossInput input = Input(value);
  input.logits = &scores.view;
  input.targets = &targets.view;
  Record record{};
  ASSERT_TRUE(PackLoss(input, record));
  EXPECT_EQ(record.kind, RecordKind::kLoss);
  EXPECT_EQ(record.loss.value, 0.75);
  EXPECT_EQ(record.loss.label_count, 2u);
  EXPECT_EQ(record.loss.label_ignored, 1u);
  EXPECT_EQ(record.loss.label_sum, 3.0);
  EXPECT_EQ(record.loss.label_sum_squares, 5.0);
  EXPECT_EQ(record.loss.class_count, 3u);
  double expected = 0;
  for (int row = 0; row < 3; ++row) {
    double sum = 0;
    for (int c = 0; c < 3; ++c) sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>(row * 3 + c)]));
    expected += std::log(sum) / 3;
  }
  EXPECT_NEAR(record.loss.logsumexp_mean, expected, 1e-6);
  EXPECT_FALSE(Has(record, 5));  // nobody measured the gradient of the logits here
}

TEST(LossStatistics, ClassDimension_IsTheOneTheTargetsLack) {
  const std::vector<float> loss{1.0f}, logits(2 * 5 * 7, 0.0f);
  const std::vector<std::int64_t> labels(10, 1), planes(14, 1);
  const Array value(loss, DType::kFloat32, {}), scores(logits, DType::kFloat32, {2, 5, 7});
  const Array last(labels, DType::kInt64, {2, 5}), second(planes, DType::kInt64, {2, 7});
  LossInput input = Input(value);
  input.logits = &scores.view;
  Record record{};
  input.targets = &last.view;
  ASSERT_TRUE(PackLoss(input, record));
  EXPECT_EQ(record.loss.class_count, 7u);
  EXPECT_NEAR(record.loss.logsumexp_mean, std::log(7.0), 1e-6);
  input.targets = &second.view;
  ASSERT_TRUE(PackLoss(input, record));
  EXPECT_EQ(record.loss.class_count, 5u);
  EXPECT_NEAR(record.loss.logsumexp_mean, std::log(5.0), 1e-6);
}

TEST(LossStatistics, ManyLogits_AreSampledEvenly) {
  const std::size_t rows = 3 * kMaxLogitElements / 64;
  std::vector<float> logits(rows * 64);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i / 64) / static_cast<float>(rows);
  const std::vector<float> loss{1.0f};
  const Array value(loss, DType::kFloat32, {}), scores(logits, DType::kFloat32, {static_cast<std::int64_t>(rows), 64});
  LossInput input = Input(value);
  input.logits = &scores.view;
  Record record{};
  ASSERT_TRUE(PackLoss(input, record));
  EXPECT_NEAR(record.loss.logsumexp_mean, 0.5 + std::log(64.0), 0.01);
}

TEST(LossStatistics, NonfiniteLoss_KeepsItsKind) {
  const double kInf = std::numeric_limits<double>::infinity();
  for (const double given : {kInf, -kInf}) {
    const std::vector<double> loss{given};
    Record record{};
    ASSERT_TRUE(PackLoss(Input(Array(loss, DType::kFloat64, {})), record));
    EXPECT_EQ(record.loss.value, given);
    EXPECT_EQ(record.loss.nonfinite, 1u);
  }
  const std::vector<float> loss{1.0f, NAN};
  Record record{};
  ASSERT_TRUE(PackLoss(Input(Array(loss, DType::kFloat32, {2})), record));
  EXPECT_TRUE(std::isnan(record.loss.value));
}

TEST(LossStatistics, UnreducedLoss_IsSummed_AndRegressionTargetsHaveNoClasses) {
  const std::vector<float> loss{1.0f, 2.5f}, targets{0.5f, -1.5f};
  const Array value(loss, DType::kFloat32, {2}), wanted(targets, DType::kFloat32, {2});
  LossInput input = Input(value);
  input.kind = LossKind::kMeanSquared;
  input.targets = &wanted.view;
  input.logits = &value.view;
  Record record{};
  ASSERT_TRUE(PackLoss(input, record));
  EXPECT_EQ(record.loss.value, 3.5);
  EXPECT_EQ(record.loss.label_count, 2u);
  EXPECT_EQ(record.loss.label_sum, -1.0);
  EXPECT_FALSE(Has(record, 6));
  EXPECT_FALSE(Has(record, 9));
}

TEST(LossStatistics, ValueThatCannotBeRead_IsRefused) {
  const std::vector<std::int64_t> loss{1};
  Record record{};
  EXPECT_FALSE(PackLoss(Input(Array(loss, DType::kInt64, {})), record));
}

TEST(LossStatistics, LogitsOfOnlyNan_GiveNoMean) {
  const std::vector<float> loss{1.0f}, logits(6, NAN);
  const Array value(loss, DType::kFloat32, {}), scores(logits, DType::kFloat32, {2, 3});
  LossInput input = Input(value);
  input.logits = &scores.view;
  Record record{};
  ASSERT_TRUE(PackLoss(input, record));
  EXPECT_FALSE(Has(record, 6));
  EXPECT_TRUE(Has(record, 9));
}

}  // namespace
}  // namespace neuraldbg
