// Goal: the update of a parameter is measured against the value and gradient of this step, within bounded memory.
#include "agent/src/parameter_observer.h"

#include <gtest/gtest.h>

#include <vector>

namespace neuraldbg {
namespace {

TensorView Matrix(const std::vector<float>& data, const std::int64_t* sizes, const std::int64_t* strides) {
  return {data.data(), DType::kFloat32, 2, data.size(), sizes, strides};
}

constexpr std::int64_t kSizes[] = {2, 3}, kStrides[] = {3, 1}, kColumnMajor[] = {1, 2};

TEST(ParameterObserver, Update_IsComparedWithTheCopy) {
  std::vector<float> value{1, 2, 3, 4, 5, 6};
  const std::vector<float> gradient{1, 0, -1, 2, 0, 0};
  ParameterObserver observer;
  const TensorView gradient_view = Matrix(gradient, kSizes, kStrides);
  ASSERT_TRUE(observer.Before(7, Matrix(value, kSizes, kStrides), &gradient_view, true));
  value[0] -= 0.5f;
  value[3] += 1.0f;
  ParameterObserver::Outcome outcome;
  ASSERT_TRUE(observer.After(7, 0, Matrix(value, kSizes, kStrides), outcome));
  const ParameterStatistics& statistics = outcome.statistics;
  EXPECT_TRUE(outcome.gradient_present);
  EXPECT_EQ(statistics.value.sum, 21.5);
  EXPECT_EQ(statistics.gradient.sum_squares, 6.0);
  EXPECT_EQ(statistics.gradient.zero_count, 3u);
  EXPECT_EQ(statistics.update.update_sum_squares, 1.25);
  EXPECT_EQ(statistics.update.gradient_dot_update, 1.5);
  EXPECT_NE(statistics.update.differing_bits, 0u);
  GroupTotals sums;
  ASSERT_TRUE(observer.GroupSums(0, sums));
  EXPECT_EQ(sums.update_sum_squares, 1.25);
  EXPECT_EQ(sums.observed, 1u);
  EXPECT_FALSE(observer.GroupSums(1, sums));
}

TEST(ParameterObserver, GradientInAnotherLayout_IsPairedByIndex) {
  std::vector<float> value{1, 2, 3, 4, 5, 6};
  const std::vector<float> gradient{10, 40, 20, 50, 30, 60};  // column major: the matrix 10 20 30 / 40 50 60
  ParameterObserver observer;
  const TensorView gradient_view = Matrix(gradient, kSizes, kColumnMajor);
  ASSERT_TRUE(observer.Before(1, Matrix(value, kSizes, kStrides), &gradient_view, true));
  value[1] += 1.0f;
  ParameterObserver::Outcome outcome;
  ASSERT_TRUE(observer.After(1, 0, Matrix(value, kSizes, kStrides), outcome));
  EXPECT_EQ(outcome.statistics.update.gradient_dot_update, 20.0);
}

TEST(ParameterObserver, AfterWithoutBefore_DoesNothing) {
  const std::vector<float> value(6, 1.0f);
  ParameterObserver observer;
  ParameterObserver::Outcome outcome;
  EXPECT_FALSE(observer.After(1, 0, Matrix(value, kSizes, kStrides), outcome));
  ASSERT_TRUE(observer.Before(1, Matrix(value, kSizes, kStrides), nullptr, false));
  observer.EndStep();
  EXPECT_FALSE(observer.After(1, 0, Matrix(value, kSizes, kStrides), outcome)) << "a copy outlived its step";
}

TEST(ParameterObserver, MissingGradient_IsNotZero) {
  const std::vector<float> value(6, 1.0f);
  ParameterObserver observer;
  ASSERT_TRUE(observer.Before(1, Matrix(value, kSizes, kStrides), nullptr, false));
  ParameterObserver::Outcome outcome;
  ASSERT_TRUE(observer.After(1, 0, Matrix(value, kSizes, kStrides), outcome));
  EXPECT_FALSE(outcome.gradient_present);
  EXPECT_FALSE(outcome.statistics.has_gradient);
  EXPECT_FALSE(outcome.statistics.has_dot);
  EXPECT_TRUE(outcome.statistics.has_update);
  EXPECT_EQ(outcome.statistics.update.differing_bits, 0u);
}

TEST(ParameterObserver, ReplacedParameter_IsNotCompared) {
  const std::vector<float> value(6, 1.0f), other(4, 1.0f);
  constexpr std::int64_t kOtherSizes[] = {2, 2}, kOtherStrides[] = {2, 1};
  ParameterObserver observer;
  ASSERT_TRUE(observer.Before(1, Matrix(value, kSizes, kStrides), nullptr, false));
  ParameterObserver::Outcome outcome;
  EXPECT_FALSE(observer.After(1, 0, Matrix(other, kOtherSizes, kOtherStrides), outcome));
}

TEST(ParameterObserver, ManyParameters_ReuseTheirPool) {
  const std::vector<float> value(6, 1.0f);
  std::vector<float> large(3 << 20, 0.5f);
  constexpr std::int64_t kLargeSizes[] = {3, 1 << 20}, kLargeStrides[] = {1 << 20, 1};
  ParameterObserver observer;
  for (int step = 0; step < 5; ++step) {
    const TensorView view = Matrix(large, kLargeSizes, kLargeStrides);
    for (std::uint32_t site = 0; site < 3; ++site) {
      ASSERT_TRUE(observer.Before(site, view, &view, true));
      ASSERT_TRUE(observer.Before(100 + site, Matrix(value, kSizes, kStrides), nullptr, false));
    }
    for (float& x : large) x += 0.25f;
    for (std::uint32_t site = 0; site < 3; ++site) {
      ParameterObserver::Outcome outcome;
      ASSERT_TRUE(observer.After(site, 0, view, outcome));
      EXPECT_EQ(outcome.statistics.update.update_sum_squares, 0.0625 * static_cast<double>(large.size()));
    }
    observer.EndStep();
  }
}

}  // namespace
}  // namespace neuraldbg
