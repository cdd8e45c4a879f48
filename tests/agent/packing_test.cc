// Goal: a payload claims exactly what was measured.
#include "agent/src/packing.h"

#include <gtest/gtest.h>

#include <limits>

namespace neuraldbg {
namespace {

bool Has(const Record& record, unsigned bit) { return (record.validity & ValidityBit(bit)) != 0; }

TEST(Packing, TensorOfIntegers_ClaimsNoFloatCounts) {
  TensorStatistics statistics;
  statistics.total.count = 3;
  statistics.total.sum = 5;
  Record record{};
  PackTensor(statistics, record);
  EXPECT_EQ(record.tensor.numel, 3u);
  EXPECT_EQ(record.tensor.sum, 5.0);
  for (const unsigned bit : {0u, 3u, 7u, 8u, 9u, 10u, 12u}) EXPECT_TRUE(Has(record, bit)) << bit;
  for (const unsigned bit : {1u, 2u, 4u, 5u, 6u, 11u, 13u, 14u}) EXPECT_FALSE(Has(record, bit)) << bit;
}

TEST(Packing, TensorWithUnitsAndSaturation_ClaimsThem) {
  TensorStatistics statistics;
  statistics.is_floating = statistics.has_units = statistics.has_saturation = true;
  statistics.units = 8;
  statistics.dead_units = 2;
  statistics.total.saturated_count = 4;
  Record record{};
  PackTensor(statistics, record);
  EXPECT_EQ(record.validity, ValidityBit(13) - 1);
  EXPECT_EQ(record.tensor.dead_units, 2u);
  EXPECT_EQ(record.tensor.units, 8u);
  EXPECT_EQ(record.tensor.saturated_count, 4u);
}

TEST(Packing, CountsAndMaxima_SaturateInsteadOfWrapping) {
  EXPECT_EQ(SaturateCount(0x1'0000'0007ull), 0xffffffffu);
  EXPECT_EQ(SaturateCount(0xfffffffeull), 0xfffffffeu);
  EXPECT_EQ(NarrowMaximum(1e300), std::numeric_limits<float>::max());
  EXPECT_EQ(NarrowMaximum(2.5), 2.5f);
  EXPECT_EQ(NarrowMaximum(0x1p-149), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(NarrowMaximum(0x1p-127), 0x1p-127f);
  EXPECT_EQ(NarrowMaximum(0.0), 0.0f);
}

TEST(Packing, ParameterWithoutGradientOrCopy_ClaimsTheValueOnly) {
  ParameterStatistics statistics;
  statistics.value.count = 10;
  Record record{};
  PackParameter(statistics, record);
  for (const unsigned bit : {0u, 1u, 2u, 3u, 7u, 9u}) EXPECT_TRUE(Has(record, bit)) << bit;
  for (const unsigned bit : {4u, 5u, 6u, 8u, 10u, 11u, 12u}) EXPECT_FALSE(Has(record, bit)) << bit;
}

TEST(Packing, ParameterWithEverything_ClaimsEverything) {
  ParameterStatistics statistics;
  statistics.has_gradient = statistics.has_update = statistics.has_dot = true;
  statistics.update.differing_bits = 0x100000000ull;
  statistics.update.update_sum_squares = 2;
  Record record{};
  PackParameter(statistics, record);
  EXPECT_EQ(record.validity, ValidityBit(13) - 1);
  EXPECT_EQ(record.parameter.changed, 1u);
  statistics.update.differing_bits = 0;
  PackParameter(statistics, record);
  EXPECT_EQ(record.parameter.changed, 0u);
}

}  // namespace
}  // namespace neuraldbg
