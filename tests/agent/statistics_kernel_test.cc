// Goal: every kernel table counts and adds as the definition says, for every element type and for the numbers that
// break float arithmetic. Method: a straightforward reference in long double; counts, maxima and bit sums must be
// equal, sums agree within the bound that statistics_kernel.inc states (2^8 lanes' roundings of 2^-24 each, of Σ|x| or
// Σx²).
#include "agent/src/statistics_kernel.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>

#include "tests/agent/element_types.h"

namespace neuraldbg {
namespace {

using testing::Elements;
using testing::MakeElements;

constexpr double kSumTolerance = 0x1p-16;

std::vector<const KernelTable*> Tables() {
  std::vector<const KernelTable*> tables{&PortableKernels()};
  if (Avx2Kernels() != nullptr) tables.push_back(Avx2Kernels());
  if (Avx512Kernels() != nullptr) tables.push_back(Avx512Kernels());
  return tables;
}

const DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

struct Reference {
  long double sum = 0, sum_abs = 0, sum_squares = 0;
  Accumulator counts;
};

Reference Count(const Elements& elements, const SaturationBounds* bounds) {
  Reference reference;
  Accumulator& counts = reference.counts;
  for (std::size_t i = 0; i < elements.values.size(); ++i) {
    const double x = elements.values[i];
    ++counts.count;
    counts.bits += elements.patterns[i];
    if (std::isnan(x)) {
      ++counts.nan_count;
    } else if (std::isinf(x)) {
      ++counts.inf_count;
    } else {
      reference.sum += x;
      reference.sum_abs += std::fabs(x);
      reference.sum_squares += static_cast<long double>(x) * x;
      counts.max_abs = std::max(counts.max_abs, std::fabs(x));
      if (x == 0) ++counts.zero_count;
      if (x != 0 && std::fabs(x) < kTinyMagnitude) ++counts.tiny_count;
      const bool single = elements.dtype != DType::kFloat64;
      const double upper =
          bounds == nullptr ? 0 : (single ? static_cast<double>(static_cast<float>(bounds->upper)) : bounds->upper);
      const double lower =
          bounds == nullptr ? 0 : (single ? static_cast<double>(static_cast<float>(bounds->lower)) : bounds->lower);
      if (bounds != nullptr && (x > upper || x < lower)) ++counts.saturated_count;
    }
  }
  return reference;
}

void ExpectNear(double actual, long double expected, long double scale, const std::string& what) {
  if (std::isinf(static_cast<double>(expected))) {
    EXPECT_EQ(actual, static_cast<double>(expected)) << what;
    return;
  }
  EXPECT_LE(std::fabs(static_cast<long double>(actual) - expected), kSumTolerance * scale) << what;
}

void Check(const std::vector<double>& wanted, const std::string& name, const SaturationBounds* bounds = nullptr) {
  for (const DType dtype : kTypes) {
    const Elements elements = MakeElements(dtype, wanted);
    const Reference reference = Count(elements, bounds);
    for (const KernelTable* table : Tables()) {
      const std::string what = name + " n=" + std::to_string(wanted.size()) + " type " +
                               std::to_string(static_cast<int>(dtype)) + " " + table->name;
      Accumulator total;
      KernelsFor(*table, dtype).accumulate(elements.memory.data(), wanted.size(), bounds, total);
      EXPECT_EQ(total.count, reference.counts.count) << what;
      EXPECT_EQ(total.nan_count, reference.counts.nan_count) << what;
      EXPECT_EQ(total.inf_count, reference.counts.inf_count) << what;
      EXPECT_EQ(total.zero_count, reference.counts.zero_count) << what;
      EXPECT_EQ(total.tiny_count, reference.counts.tiny_count) << what;
      EXPECT_EQ(total.saturated_count, reference.counts.saturated_count) << what;
      EXPECT_EQ(total.bits, reference.counts.bits) << what;
      EXPECT_EQ(total.max_abs, reference.counts.max_abs) << what;
      ExpectNear(total.sum, reference.sum, reference.sum_abs, what + " sum");
      ExpectNear(total.sum_abs, reference.sum_abs, reference.sum_abs, what + " sum_abs");
      ExpectNear(total.sum_squares, reference.sum_squares, reference.sum_squares, what + " sum_squares");
    }
  }
}

std::vector<double> Normal(std::size_t count, double scale, double mean = 0) {
  std::mt19937_64 random(count + 1);
  std::normal_distribution<double> normal(mean, scale);
  std::vector<double> values(count);
  for (double& value : values) value = normal(random);
  return values;
}

// Around vector widths and block lengths of all tables (256 vectors of 4, 8 and 16 lanes).
const std::size_t kCounts[] = {0,  1,   2,    3,    7,    8,    15,   16,   17,   31,   33,
                               64, 255, 1023, 1024, 1025, 2048, 4095, 4096, 4097, 10007};

TEST(StatisticsKernel, OrdinaryNumbers_AnyCount_AgreeWithReference) {
  for (const std::size_t count : kCounts) {
    Check(Normal(count, 1.0), "normal");
    Check(Normal(count, 0.5, 100.0), "offset");
  }
}

TEST(StatisticsKernel, MagnitudesWhoseSquaresLeaveFloat32_StayExact) {
  for (const double scale : {1e-40, 1e-30, 1e-24, 1e-20, 1e-14, 1e-13, 1e17, 1e18, 1e20, 1e30, 1e37}) {
    Check(Normal(5000, scale), "scale " + std::to_string(std::log10(scale)));
  }
  Check(std::vector<double>(4096, 1e38), "all large");
  Check(std::vector<double>(4096, std::numeric_limits<float>::denorm_min()), "all subnormal");
}

TEST(StatisticsKernel, OneLargeAmongSmall_SumsKeepBoth) {
  std::vector<double> values = Normal(4096, 1e-22);
  values[100] = 3.0;
  Check(values, "one large");
  values[4095] = 1e25;
  Check(values, "one huge");
}

TEST(StatisticsKernel, NonfiniteElements_AreCountedAndLeftOutOfSums) {
  const double kInf = std::numeric_limits<double>::infinity();
  for (const std::size_t count : {1u, 5u, 16u, 17u, 4096u, 9001u}) {
    std::vector<double> values = Normal(count, 2.0);
    values[count / 2] = NAN;
    Check(values, "one nan");
    values[0] = -kInf;
    values[count - 1] = kInf;
    Check(values, "inf at the ends");
    Check(std::vector<double>(count, NAN), "all nan");
    Check(std::vector<double>(count, -NAN), "all negative nan");
    Check(std::vector<double>(count, kInf), "all inf");
  }
}

TEST(StatisticsKernel, ZerosOfBothSigns_AndTinyNumbers_AreToldApart) {
  std::vector<double> values;
  for (int i = 0; i < 3000; ++i) {
    const double choices[] = {0.0, -0.0, 0x1p-24, 0x1.fp-25, -0x1.8p-25, 0x1p-100, 1.0, -0x1p-24};
    values.push_back(choices[i % 8]);
  }
  Check(values, "zeros and tiny");
  Check(std::vector<double>(777, -0.0), "negative zeros");
}

TEST(StatisticsKernel, Saturation_CountsBeyondEitherBound) {
  const SaturationBounds kTanh{-0.99, 0.99}, kSigmoid{0.01, 0.99};
  const SaturationBounds kSoftmax{-std::numeric_limits<double>::infinity(), 0.99};
  for (const std::size_t count : kCounts) {
    std::vector<double> values = Normal(count, 0.7);
    if (count > 3) values[3] = NAN;
    for (const SaturationBounds* bounds : {&kTanh, &kSigmoid, &kSoftmax}) Check(values, "saturated", bounds);
  }
}

TEST(StatisticsKernel, BitSum_OfAllOnesPatterns_DoesNotWrapAt32Bits) {
  Check(std::vector<double>(100000, -NAN), "wrap");
  Check(std::vector<double>(100000, -1.9999), "wrap finite");
}

TEST(StatisticsKernel, MisalignedMemory_IsReadAsIs) {
  const std::vector<double> values = Normal(2000, 1.0);
  const Elements elements = MakeElements(DType::kFloat32, values);
  std::vector<std::byte> shifted(elements.memory.size() + 4);
  std::memcpy(shifted.data() + 4, elements.memory.data(), elements.memory.size());
  for (const KernelTable* table : Tables()) {
    Accumulator aligned, misaligned;
    table->float32.accumulate(elements.memory.data(), 2000, nullptr, aligned);
    table->float32.accumulate(shifted.data() + 4, 2000, nullptr, misaligned);
    EXPECT_EQ(aligned.sum, misaligned.sum);
    EXPECT_EQ(aligned.bits, misaligned.bits);
  }
}

TEST(StatisticsKernel, FloatingPointMode_IsRestored) {
#if defined(__x86_64__)
  const std::vector<double> values(5000, 1e-42);
  const Elements elements = MakeElements(DType::kFloat32, values);  // made while subnormals are not flushed
  const unsigned before = __builtin_ia32_stmxcsr();
  for (const unsigned mode : {before, before | 0x8040u}) {  // without and with flushing of subnormals
    __builtin_ia32_ldmxcsr(mode);
    for (const KernelTable* table : Tables()) {
      Accumulator total;
      table->float32.accumulate(elements.memory.data(), values.size(), nullptr, total);
      EXPECT_EQ(__builtin_ia32_stmxcsr(), mode);
      EXPECT_EQ(total.tiny_count, values.size());
      EXPECT_GT(total.sum_squares, 0.0) << table->name;
    }
  }
  __builtin_ia32_ldmxcsr(before);
#else
  GTEST_SKIP() << "the mode register is one of x86-64";
#endif
}

TEST(StatisticsKernel, Update_ComparesValuesAndMultipliesWithGradient) {
  for (const DType dtype : kTypes) {
    for (const std::size_t count : {1u, 5u, 16u, 33u, 2048u}) {
      const std::vector<double> start = Normal(count, 1.0);
      std::vector<double> end = start;
      for (double& value : end) value *= 1.25;
      const Elements before = MakeElements(dtype, start), after = MakeElements(dtype, end);
      const Elements gradient = MakeElements(dtype, Normal(count, 3.0, 1.0));
      long double squares = 0, product = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const long double update = static_cast<long double>(after.values[i]) - before.values[i];
        squares += update * update;
        product += update * gradient.values[i];
      }
      for (const KernelTable* table : Tables()) {
        UpdateAccumulator total;
        const UpdateFunction update = KernelsFor(*table, dtype).update;
        update(after.memory.data(), before.memory.data(), gradient.memory.data(), count, total);
        EXPECT_NEAR(total.update_sum_squares, static_cast<double>(squares), 1e-12 * static_cast<double>(squares));
        EXPECT_NEAR(total.gradient_dot_update, static_cast<double>(product),
                    1e-10 * static_cast<double>(squares + 10 * count));
        EXPECT_NE(total.differing_bits, 0u);
        UpdateAccumulator same;
        update(before.memory.data(), before.memory.data(), nullptr, count, same);
        EXPECT_EQ(same.differing_bits, 0u);
        EXPECT_EQ(same.update_sum_squares, 0.0);
      }
    }
  }
}

TEST(StatisticsKernel, Update_LeavesOutNonfinitePairs_AndStillSeesTheChange) {
  const Elements before = MakeElements(DType::kFloat32, {1.0, 2.0, 3.0});
  const Elements after = MakeElements(DType::kFloat32, {NAN, 2.5, INFINITY});
  const Elements gradient = MakeElements(DType::kFloat32, {1.0, NAN, 1.0});
  for (const KernelTable* table : Tables()) {
    UpdateAccumulator total;
    table->float32.update(after.memory.data(), before.memory.data(), gradient.memory.data(), 3, total);
    EXPECT_EQ(total.update_sum_squares, 0.25);
    EXPECT_EQ(total.gradient_dot_update, 0.0);
    EXPECT_NE(total.differing_bits, 0u);
  }
}

TEST(StatisticsKernel, MarkAlive_FollowsTheRule_ForAnyRowLength) {
  for (const DType dtype : kTypes) {
    for (const std::size_t units : {1u, 2u, 3u, 15u, 16u, 17u, 40u}) {
      std::vector<double> values(units * 3, 0.0);
      for (std::size_t unit = 0; unit < units; ++unit) {
        const double choices[] = {0.0, -0.0, -1.0, 1.0, NAN, -NAN, -1e-30, 1e-30};
        values[(unit % 3) * units + unit] = choices[unit % 8];
      }
      const Elements elements = MakeElements(dtype, values);
      for (const KernelTable* table : Tables()) {
        for (const bool positive_only : {false, true}) {
          std::vector<std::uint32_t> flags(units, 0);
          KernelsFor(*table, dtype).mark_alive(elements.memory.data(), 3, units, positive_only, flags.data());
          for (std::size_t unit = 0; unit < units; ++unit) {
            const double x = elements.values[(unit % 3) * units + unit];
            const bool alive = positive_only ? !(x <= 0) : x != 0;
            EXPECT_EQ(flags[unit] != 0, alive) << table->name << " unit " << unit << " of " << units << " value " << x;
          }
        }
      }
    }
  }
}

TEST(StatisticsKernel, Integers_AddExactly) {
  const std::vector<std::int64_t> wide{std::numeric_limits<std::int64_t>::min(), -3, 0, 7};
  Accumulator total;
  IntegerKernels(DType::kInt64).accumulate(wide.data(), wide.size(), nullptr, total);
  EXPECT_EQ(total.max_abs, 0x1p63);
  EXPECT_EQ(total.zero_count, 1u);
  EXPECT_EQ(total.bits, 0x8000000000000000ull - 3 + 7);
  std::vector<std::int16_t> narrow(70000, -32768);
  Accumulator sums;
  IntegerKernels(DType::kInt16).accumulate(narrow.data(), narrow.size(), nullptr, sums);
  EXPECT_EQ(sums.sum, -32768.0 * 70000);
  EXPECT_EQ(sums.sum_squares, 32768.0 * 32768 * 70000);
  EXPECT_EQ(sums.bits, 0x8000ull * 70000);
  EXPECT_EQ(IntegerKernels(DType::kComplex64).accumulate, nullptr);
}

}  // namespace
}  // namespace neuraldbg
