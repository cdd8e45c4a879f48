// Names of statistics and which of them a record kind has. Both tables are positional, so each is held to the size of
// its enum at compile time.
#include <algorithm>

#include "daemon/model/sample.h"

namespace neuraldbg {
namespace {

using enum Statistic;

constexpr std::size_t kStatisticCount = static_cast<std::size_t>(kCount);

constexpr auto kPhases = std::to_array<std::string_view>(
    {"DATA", "FORWARD", "LOSS", "BACKWARD", "GRADIENT_SYNC", "OPTIMIZER", "PARAMETER", "SYSTEM"});
static_assert(kPhases.size() == kPhaseCount);

// In the order of the enum.
constexpr auto kNames = std::to_array<std::string_view>({"none",
                                                         "numel",
                                                         "nan",
                                                         "inf",
                                                         "zero",
                                                         "saturated",
                                                         "tiny",
                                                         "dead_units",
                                                         "units",
                                                         "mean",
                                                         "mean_abs",
                                                         "rms",
                                                         "max_abs",
                                                         "calls",
                                                         "gradient_rms",
                                                         "update_rms",
                                                         "gradient_dot_update",
                                                         "gradient_max_abs",
                                                         "value_nonfinite",
                                                         "gradient_nonfinite",
                                                         "gradient_zero",
                                                         "changed",
                                                         "learning_rate",
                                                         "loss_scale",
                                                         "weight_decay",
                                                         "beta1",
                                                         "beta2",
                                                         "epsilon",
                                                         "parameter_count",
                                                         "skipped_total",
                                                         "gradient_norm",
                                                         "update_norm",
                                                         "observed_count",
                                                         "loss",
                                                         "label_count",
                                                         "label_ignored",
                                                         "label_mean",
                                                         "label_rms",
                                                         "logit_gradient_sum_abs",
                                                         "logsumexp",
                                                         "loss_kind",
                                                         "reduction",
                                                         "class_count",
                                                         "nonfinite",
                                                         "samples",
                                                         "duration_seconds",
                                                         "agent_seconds",
                                                         "microbatches",
                                                         "cadence",
                                                         "rotation_group",
                                                         "rotation_groups",
                                                         "shed_level",
                                                         "recompiles",
                                                         "data_seconds",
                                                         "forward_seconds",
                                                         "backward_seconds",
                                                         "to_first_collective_seconds",
                                                         "sync_seconds",
                                                         "optimizer_seconds",
                                                         "collective_sequence",
                                                         "logit_max",
                                                         "entropy",
                                                         "logit_max_bound",
                                                         "rows",
                                                         "heads",
                                                         "load_max",
                                                         "load_entropy",
                                                         "score_sum",
                                                         "tokens",
                                                         "experts",
                                                         "unused_experts"});
static_assert(kNames.size() == kStatisticCount);

constexpr auto kTensorStatistics = std::to_array<Statistic>(
    {kNumel, kNan, kInf, kZero, kSaturated, kTiny, kDeadUnits, kUnits, kMean, kMeanAbs, kRms, kMaxAbs, kCalls});
constexpr auto kParameterStatistics =
    std::to_array<Statistic>({kNumel, kMean, kRms, kMaxAbs, kGradientRms, kUpdateRms, kGradientDotUpdate,
                              kGradientMaxAbs, kValueNonfinite, kGradientNonfinite, kGradientZero, kChanged});
constexpr auto kOptimizerStatistics =
    std::to_array<Statistic>({kLearningRate, kLossScale, kWeightDecay, kBeta1, kBeta2, kEpsilon, kParameterCount,
                              kSkippedTotal, kGradientNorm, kUpdateNorm, kObservedCount});
constexpr auto kLossStatistics =
    std::to_array<Statistic>({kLoss, kLabelCount, kLabelIgnored, kLabelMean, kLabelRms, kLogitGradientSumAbs,
                              kLogsumexp, kLossKind, kReduction, kClassCount, kNonfinite, kCalls});
constexpr auto kStepStatistics =
    std::to_array<Statistic>({kSamples, kDurationSeconds, kAgentSeconds, kMicrobatches, kCadence, kRotationGroup,
                              kRotationGroups, kShedLevel, kSkippedTotal, kRecompiles});
constexpr auto kPhasesStatistics =
    std::to_array<Statistic>({kDataSeconds, kForwardSeconds, kBackwardSeconds, kToFirstCollectiveSeconds, kSyncSeconds,
                              kOptimizerSeconds, kCollectiveSequence});
constexpr auto kAttentionStatistics =
    std::to_array<Statistic>({kLogitMax, kEntropy, kLogitMaxBound, kRows, kHeads, kCalls});
constexpr auto kRouterStatistics =
    std::to_array<Statistic>({kLoadMax, kLoadEntropy, kScoreSum, kTokens, kExperts, kUnusedExperts, kCalls});
static_assert(kTensorStatistics.size() <= kMaxStatistics && kParameterStatistics.size() <= kMaxStatistics &&
              kOptimizerStatistics.size() <= kMaxStatistics && kLossStatistics.size() <= kMaxStatistics &&
              kStepStatistics.size() <= kMaxStatistics && kRouterStatistics.size() <= kMaxStatistics);

constexpr std::span<const Statistic> Of(RecordKind kind) {
  switch (kind) {
    case RecordKind::kTensor:
    case RecordKind::kBatch:
      return kTensorStatistics;
    case RecordKind::kParameter:
      return kParameterStatistics;
    case RecordKind::kOptimizer:
      return kOptimizerStatistics;
    case RecordKind::kLoss:
      return kLossStatistics;
    case RecordKind::kStep:
      return kStepStatistics;
    case RecordKind::kPhases:
      return kPhasesStatistics;
    case RecordKind::kAttention:
      return kAttentionStatistics;
    case RecordKind::kRouter:
      return kRouterStatistics;
    case RecordKind::kNone:
      break;
  }
  return {};
}

// Get and Set are on the path of every sample, so the search is done once, by the compiler.
constexpr auto MakeIndexTable() {
  std::array<std::array<std::uint8_t, kStatisticCount>, kRecordKindCount> table{};
  for (std::size_t kind = 0; kind < kRecordKindCount; ++kind) {
    table[kind].fill(kMaxStatistics);
    const std::span<const Statistic> statistics = Of(static_cast<RecordKind>(kind));
    for (std::size_t i = 0; i < statistics.size(); ++i) {
      table[kind][static_cast<std::size_t>(statistics[i])] = static_cast<std::uint8_t>(i);
    }
  }
  return table;
}
constexpr auto kIndexTable = MakeIndexTable();

}  // namespace

std::string_view PhaseName(Phase phase) {
  const auto index = static_cast<std::size_t>(phase);
  return index < kPhases.size() ? kPhases[index] : std::string_view("?");
}

std::string_view StatisticName(Statistic statistic) {
  const auto index = static_cast<std::size_t>(statistic);
  return index < kNames.size() ? kNames[index] : kNames[0];
}

std::optional<Statistic> StatisticFromName(std::string_view name) {
  const auto found = std::find(kNames.begin() + 1, kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Statistic>(found - kNames.begin());
}

std::span<const Statistic> StatisticsOf(RecordKind kind) { return Of(kind); }

std::size_t StatisticIndex(RecordKind kind, Statistic statistic) {
  const auto row = static_cast<std::size_t>(kind);
  const auto column = static_cast<std::size_t>(statistic);
  if (row >= kRecordKindCount || column >= kStatisticCount) return kMaxStatistics;
  return kIndexTable[row][column];
}

}  // namespace neuraldbg
