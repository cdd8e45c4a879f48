// The tables of daemon/model are positional; these tests fail when an entry is missing, doubled or out of place.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string_view>

#include "daemon/model/diagnosis.h"
#include "daemon/model/sample.h"

namespace neuraldbg {
namespace {

TEST(StatisticTest, Names_AreUniqueAndLeadBack) {
  std::set<std::string_view> seen;
  for (std::size_t i = 1; i < static_cast<std::size_t>(Statistic::kCount); ++i) {
    const auto statistic = static_cast<Statistic>(i);
    const std::string_view name = StatisticName(statistic);
    EXPECT_TRUE(seen.insert(name).second) << name;
    EXPECT_EQ(StatisticFromName(name), statistic) << name;
  }
  EXPECT_EQ(StatisticFromName("none"), std::nullopt);
  EXPECT_EQ(StatisticFromName("no_such"), std::nullopt);
}

TEST(StatisticTest, Names_AreThoseOfTheContract) {
  EXPECT_EQ(StatisticName(Statistic::kRms), "rms");
  EXPECT_EQ(StatisticName(Statistic::kCalls), "calls");
  EXPECT_EQ(StatisticName(Statistic::kObservedCount), "observed_count");
  EXPECT_EQ(StatisticName(Statistic::kLoss), "loss");
  EXPECT_EQ(StatisticName(Statistic::kNonfinite), "nonfinite");
  EXPECT_EQ(StatisticName(Statistic::kSamples), "samples");
  EXPECT_EQ(StatisticName(Statistic::kRecompiles), "recompiles");
  EXPECT_EQ(StatisticName(Statistic::kUnusedExperts), "unused_experts");
}

TEST(StatisticTest, EveryStatistic_BelongsToAKindAndIsFoundThere) {
  std::set<Statistic> covered;
  for (std::uint8_t k = 0; k < kRecordKindCount; ++k) {
    const auto kind = static_cast<RecordKind>(k);
    const auto statistics = StatisticsOf(kind);
    ASSERT_LE(statistics.size(), kMaxStatistics);
    for (std::size_t i = 0; i < statistics.size(); ++i) {
      covered.insert(statistics[i]);
      EXPECT_EQ(StatisticIndex(kind, statistics[i]), i);
    }
  }
  EXPECT_EQ(covered.size(), static_cast<std::size_t>(Statistic::kCount) - 1);
  EXPECT_EQ(StatisticIndex(RecordKind::kTensor, Statistic::kLoss), kMaxStatistics);
  EXPECT_EQ(StatisticIndex(static_cast<RecordKind>(200), Statistic::kRms), kMaxStatistics);
}

TEST(SampleTest, Missing_IsNeverZero) {
  Sample sample;
  sample.kind = RecordKind::kTensor;
  EXPECT_FALSE(sample.Has(Statistic::kRms));
  EXPECT_TRUE(std::isnan(sample.Get(Statistic::kRms)));
  sample.Set(Statistic::kRms, 0.0f);
  EXPECT_TRUE(sample.Has(Statistic::kRms));
  EXPECT_EQ(sample.Get(Statistic::kRms), 0.0f);
  sample.Set(Statistic::kLearningRate, 1.0f);  // not a statistic of a tensor
  EXPECT_FALSE(sample.Has(Statistic::kLearningRate));
}

TEST(DiagnosisTest, Names_FollowTheEnum) {
  EXPECT_EQ(HypothesisKindName(HypothesisKind::DATA_NONFINITE), "DATA_NONFINITE");
  EXPECT_EQ(HypothesisKindName(HypothesisKind::BLIND_SPOT), "BLIND_SPOT");
  EXPECT_EQ(VerdictName(Verdict::UNSURE), "UNSURE");
  EXPECT_EQ(VerdictName(Verdict::HEALTHY), "HEALTHY");
  EXPECT_EQ(HypothesisKindName(static_cast<HypothesisKind>(250)), "UNKNOWN");
}

}  // namespace
}  // namespace neuraldbg
