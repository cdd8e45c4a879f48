// Goal: the statistics of a view are those of its elements, whatever its shape and strides, and dead units are those
// that the definition names. Method: the elements are gathered one by one by their index, and counted contiguously;
// units are found by brute force.
#include "agent/src/tensor_statistics.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "tests/agent/element_types.h"

namespace neuraldbg {
namespace {

using Shape = std::vector<std::int64_t>;

struct Tensor {
  std::vector<float> storage;
  Shape sizes, strides;
  std::int64_t offset = 0;

  TensorView view() const {
    TensorView view;
    view.data = storage.data() + offset;
    view.dtype = DType::kFloat32;
    view.dimensions = static_cast<int>(sizes.size());
    view.numel =
        static_cast<std::uint64_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>()));
    view.sizes = sizes.data();
    view.strides = strides.data();
    return view;
  }

  // visit(index tuple, value), in logical order
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    if (view().numel == 0) return;
    Shape index(sizes.size(), 0);
    while (true) {
      std::int64_t position = offset;
      for (std::size_t d = 0; d < sizes.size(); ++d) position += index[d] * strides[d];
      visit(index, storage[static_cast<std::size_t>(position)]);
      int d = static_cast<int>(sizes.size()) - 1;
      for (; d >= 0; --d) {
        if (++index[static_cast<std::size_t>(d)] < sizes[static_cast<std::size_t>(d)]) break;
        index[static_cast<std::size_t>(d)] = 0;
      }
      if (d < 0) return;
    }
  }
};

Tensor Contiguous(const Shape& sizes, unsigned seed = 1) {
  Tensor tensor;
  tensor.sizes = sizes;
  tensor.strides.assign(sizes.size(), 1);
  for (int d = static_cast<int>(sizes.size()) - 2; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    tensor.strides[i] = tensor.strides[i + 1] * std::max<std::int64_t>(sizes[i + 1], 1);
  }
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  tensor.storage.resize(tensor.view().numel + 1);
  for (float& value : tensor.storage) value = std::max(normal(random), -0.5f);
  return tensor;
}

Tensor Permuted(Tensor tensor, const std::vector<std::size_t>& order) {
  const Shape sizes = tensor.sizes, strides = tensor.strides;
  for (std::size_t d = 0; d < order.size(); ++d) {
    tensor.sizes[d] = sizes[order[d]];
    tensor.strides[d] = strides[order[d]];
  }
  return tensor;
}

Tensor Sliced(Tensor tensor, std::size_t dimension, std::int64_t first, std::int64_t step) {
  tensor.offset += first * tensor.strides[dimension];
  tensor.sizes[dimension] = (tensor.sizes[dimension] - first + step - 1) / step;
  tensor.strides[dimension] *= step;
  return tensor;
}

Tensor Expanded(Tensor tensor, std::size_t dimension, std::int64_t size) {
  tensor.sizes[dimension] = size;
  tensor.strides[dimension] = 0;
  return tensor;
}

std::vector<Tensor> Layouts() {
  return {
      Contiguous({0}),
      Contiguous({3, 0, 2}),
      Contiguous({}),
      Contiguous({1}),
      Contiguous({1, 1, 1}),
      Contiguous({5000}),
      Contiguous({64, 100}),
      Contiguous({7, 5, 3, 2}),
      Permuted(Contiguous({64, 100}), {1, 0}),
      Permuted(Contiguous({4, 9, 8, 6}), {0, 3, 1, 2}),  // channels last
      Permuted(Contiguous({2, 3, 4, 5, 6}), {4, 2, 0, 1, 3}),
      Sliced(Contiguous({40, 50}), 1, 1, 2),
      Sliced(Contiguous({40, 50}), 0, 3, 3),
      Sliced(Contiguous({10, 700}), 1, 10, 1),  // long runs with gaps
      Sliced(Contiguous({3000}), 0, 1, 7),
      Sliced(Permuted(Contiguous({8, 6, 10}), {2, 0, 1}), 1, 0, 2),
      Expanded(Contiguous({1, 30}), 0, 20),
      Expanded(Contiguous({30, 1}), 1, 20),
      Expanded(Expanded(Contiguous({1, 1}), 0, 100), 1, 90),
      Contiguous({1, 1, 2, 1, 3, 1, 2, 1, 1, 1, 2, 1, 1, 1, 1, 2}),
  };
}

TEST(TensorStatistics, AnyLayout_CountsEveryElementOnce) {
  for (const Tensor& tensor : Layouts()) {
    std::vector<float> elements;
    tensor.ForEach([&](const Shape&, float value) { elements.push_back(value); });
    TensorStatistics statistics;
    ASSERT_TRUE(ComputeStatistics(tensor.view(), {}, statistics));
    Accumulator expected;
    PortableKernels().float32.accumulate(elements.data(), elements.size(), nullptr, expected);
    EXPECT_EQ(statistics.total.count, expected.count);
    EXPECT_EQ(statistics.total.bits, expected.bits);
    EXPECT_EQ(statistics.total.max_abs, expected.max_abs);
    EXPECT_EQ(statistics.total.zero_count, expected.zero_count);
    EXPECT_NEAR(statistics.total.sum, expected.sum, 0x1p-15 * expected.sum_abs);
    EXPECT_NEAR(statistics.total.sum_squares, expected.sum_squares, 0x1p-15 * expected.sum_squares);
    EXPECT_FALSE(statistics.has_units);
    EXPECT_FALSE(statistics.has_saturation);
  }
}

// A unit that is dead only in part must count as alive, so every second unit is silenced, and one row revives some.
void Silence(Tensor& tensor, std::size_t dimension) {
  tensor.ForEach([&](const Shape& index, const float& value) {
    const std::int64_t unit = index[dimension];
    if (unit % 2 == 0 && !(unit % 4 == 0 && index[0] == tensor.sizes[0] - 1))
      const_cast<float&>(value) = -0.25f * static_cast<float>(unit % 3);
  });
}

std::uint32_t BruteForceDead(const Tensor& tensor, std::size_t dimension, DeadRule rule) {
  std::set<std::int64_t> alive;
  tensor.ForEach([&](const Shape& index, float value) {
    if (rule == DeadRule::kNeverPositive ? !(value <= 0) : value != 0) alive.insert(index[dimension]);
  });
  return static_cast<std::uint32_t>(tensor.sizes[dimension]) - static_cast<std::uint32_t>(alive.size());
}

TEST(TensorStatistics, DeadUnits_AreThoseOfTheDefinition) {
  for (Tensor tensor : Layouts()) {
    if (tensor.view().numel == 0) continue;
    for (const UnitMode mode : {UnitMode::kLastDimension, UnitMode::kDimension1}) {
      if (tensor.sizes.size() < (mode == UnitMode::kDimension1 ? 2u : 1u)) continue;
      const std::size_t dimension = mode == UnitMode::kDimension1 ? 1 : tensor.sizes.size() - 1;
      Silence(tensor, dimension);
      for (const DeadRule rule : {DeadRule::kNeverNonzero, DeadRule::kNeverPositive}) {
        TensorStatistics statistics;
        ASSERT_TRUE(ComputeStatistics(tensor.view(), {mode, Saturation::kNone, rule}, statistics));
        EXPECT_TRUE(statistics.has_units);
        EXPECT_EQ(statistics.units, static_cast<std::uint32_t>(tensor.sizes[dimension]));
        EXPECT_EQ(statistics.dead_units, BruteForceDead(tensor, dimension, rule));
        EXPECT_EQ(statistics.total.count, tensor.view().numel);
      }
    }
  }
}

TEST(TensorStatistics, ManyRows_StopWatchingOnlyWhenEveryUnitSpoke) {
  Tensor tensor = Contiguous({4000, 24});
  for (float& value : tensor.storage) value = 1.0f;
  for (std::size_t row = 0; row < 4000; ++row) tensor.storage[row * 24 + 7] = 0.0f;
  TensorStatistics statistics;
  const StatisticsOptions options{UnitMode::kLastDimension, Saturation::kNone, DeadRule::kNeverPositive};
  ASSERT_TRUE(ComputeStatistics(tensor.view(), options, statistics));
  EXPECT_EQ(statistics.dead_units, 1u);
  tensor.storage[3999 * 24 + 7] = 0.5f;  // its first sign of life in the very last row
  ASSERT_TRUE(ComputeStatistics(tensor.view(), options, statistics));
  EXPECT_EQ(statistics.dead_units, 0u);
  EXPECT_EQ(statistics.total.count, 96000u);
}

TEST(TensorStatistics, NanUnit_IsNotDead) {
  Tensor tensor = Contiguous({16, 8});
  for (std::size_t row = 0; row < 16; ++row) tensor.storage[row * 8 + 2] = -std::numeric_limits<float>::quiet_NaN();
  for (std::size_t row = 0; row < 16; ++row) tensor.storage[row * 8 + 5] = -1.0f;
  for (const UnitMode mode : {UnitMode::kLastDimension, UnitMode::kDimension1}) {
    TensorStatistics statistics;
    ASSERT_TRUE(ComputeStatistics(tensor.view(), {mode, Saturation::kNone, DeadRule::kNeverPositive}, statistics));
    EXPECT_EQ(statistics.dead_units, 1u);
    const Tensor transposed = Permuted(tensor, {1, 0});
    (void)transposed;
  }
}

TEST(TensorStatistics, TooManyUnits_AreNotCounted_AndNotClaimed) {
  const Tensor tensor = Contiguous({2, static_cast<std::int64_t>(kMaxUnits) + 1});
  TensorStatistics statistics;
  ASSERT_TRUE(ComputeStatistics(tensor.view(), {UnitMode::kLastDimension, Saturation::kNone, DeadRule::kNeverNonzero},
                                statistics));
  EXPECT_FALSE(statistics.has_units);
  EXPECT_EQ(statistics.total.count, tensor.view().numel);
}

TEST(TensorStatistics, Saturation_HasTheBoundsOfItsMode) {
  Tensor tensor = Contiguous({6});
  tensor.storage = {0.995f, -0.995f, 0.5f, 0.001f, 0.98f, -3.0f};
  const auto count = [&](Saturation saturation) {
    TensorStatistics statistics;
    EXPECT_TRUE(ComputeStatistics(tensor.view(), {UnitMode::kNone, saturation, DeadRule::kNeverNonzero}, statistics));
    EXPECT_EQ(statistics.has_saturation, saturation != Saturation::kNone);
    return statistics.total.saturated_count;
  };
  EXPECT_EQ(count(Saturation::kNone), 0u);
  EXPECT_EQ(count(Saturation::kTanh), 3u);
  EXPECT_EQ(count(Saturation::kSigmoid), 4u);
  EXPECT_EQ(count(Saturation::kSoftmax), 1u);
}

TEST(TensorStatistics, UnsupportedViews_AreRefusedWithoutReading) {
  Tensor tensor = Contiguous({4});
  TensorView view = tensor.view();
  TensorStatistics statistics;
  view.dtype = DType::kComplex64;
  EXPECT_FALSE(ComputeStatistics(view, {}, statistics));
  view = tensor.view();
  view.dimensions = kMaxTensorDimensions + 1;
  view.data = nullptr;
  EXPECT_FALSE(ComputeStatistics(view, {}, statistics));
}

TEST(TensorLayout, CopyInOrderOf_ReadsBothTensorsAlike) {
  const Tensor value = Permuted(Contiguous({6, 5, 4}, 3), {2, 0, 1});
  const Tensor gradient = Contiguous(value.sizes, 4);
  std::vector<float> value_copy(value.view().numel), gradient_copy(value.view().numel);
  CopyInOrderOf(value.view(), value.view(), 4, value_copy.data());
  CopyInOrderOf(value.view(), gradient.view(), 4, gradient_copy.data());
  double expected = 0, actual = 0;
  std::vector<float> left, right;
  value.ForEach([&](const Shape&, float x) { left.push_back(x); });
  gradient.ForEach([&](const Shape&, float x) { right.push_back(x); });
  for (std::size_t i = 0; i < left.size(); ++i)
    expected += static_cast<double>(left[i]) * static_cast<double>(right[i]);
  for (std::size_t i = 0; i < left.size(); ++i) {
    actual += static_cast<double>(value_copy[i]) * static_cast<double>(gradient_copy[i]);
  }
  EXPECT_NEAR(actual, expected, 1e-9);
  EXPECT_EQ(value_copy, std::vector<float>(value.storage.begin(), value.storage.end() - 1));  // dense: memory order
}

}  // namespace
}  // namespace neuraldbg
