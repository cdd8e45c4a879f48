// The vocabulary of the daemon, from ingest to service: plain values without behaviour.
//
// A Sample is what is left of one site's records of one step after micro-batches and repeated calls were merged. Its
// values are float32 because that is what the store keeps: detectors must see exactly what a replay will see.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/manifest.h"
#include "shared/record.h"

namespace neuraldbg {

inline constexpr std::size_t kMaxStatistics = 16;

// Every scalar that a stored series can hold. Names (StatisticName) are what `series --statistic` takes.
enum class Statistic : std::uint8_t {
  kNone = 0,
  // TENSOR and BATCH. Means are over finite elements, in the order of kTensorStatistics.
  kNumel,
  kNan,
  kInf,
  kZero,
  kSaturated,
  kTiny,
  kDeadUnits,
  kUnits,
  kMean,
  kMeanAbs,
  kRms,
  kMaxAbs,
  kCalls,
  // PARAMETER
  kGradientRms,
  kUpdateRms,
  kGradientDotUpdate /* cosine */,
  kGradientMaxAbs,
  kValueNonfinite,
  kGradientNonfinite,
  kGradientZero,
  kChanged,
  // OPTIMIZER
  kLearningRate,
  kLossScale,
  kWeightDecay,
  kBeta1,
  kBeta2,
  kEpsilon,
  kParameterCount,
  kSkippedTotal,
  kGradientNorm,
  kUpdateNorm,
  kObservedCount,  // over the parameters observed this step
  // LOSS
  kLoss,
  kLabelCount,
  kLabelIgnored,
  kLabelMean,
  kLabelRms,
  kLogitGradientSumAbs,
  kLogsumexp,
  kLossKind,
  kReduction,
  kClassCount,
  kNonfinite,
  // STEP
  kSamples,
  kDurationSeconds,
  kAgentSeconds,
  kMicrobatches,
  kCadence,
  kRotationGroup,
  kRotationGroups,
  kShedLevel,
  kRecompiles,
  // PHASES, ATTENTION, ROUTER
  kDataSeconds,
  kForwardSeconds,
  kBackwardSeconds,
  kToFirstCollectiveSeconds,
  kSyncSeconds,
  kOptimizerSeconds,
  kCollectiveSequence,
  kLogitMax,
  kEntropy,
  kLogitMaxBound,
  kRows,
  kHeads,
  kLoadMax,
  kLoadEntropy,
  kScoreSum,
  kTokens,
  kExperts,
  kUnusedExperts,
  kCount
};

std::string_view PhaseName(Phase phase);  // as in neuraldbg.v1
std::string_view StatisticName(Statistic statistic);
std::optional<Statistic> StatisticFromName(std::string_view name);
// The statistics of a record kind; Sample::value[i] belongs to element i. At most kMaxStatistics.
std::span<const Statistic> StatisticsOf(RecordKind kind);
// Index of a statistic within its kind, or kMaxStatistics.
std::size_t StatisticIndex(RecordKind kind, Statistic statistic);

inline constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

struct Sample {
  std::uint32_t site = kNoSite;
  RecordKind kind = RecordKind::kNone;
  Phase phase = Phase::kForward;
  std::uint16_t flags = 0;    // RecordFlag
  std::uint32_t present = 0;  // bit i: value[i] holds a measurement (which may itself be NaN or Inf); clear = missing
  std::uint64_t bits = 0;     // fingerprint of raw bits, valid if has_bits
  bool has_bits = false;
  std::array<float, kMaxStatistics> value{};

  bool Has(Statistic statistic) const;
  float Get(Statistic statistic) const;  // kMissing if not present: check Has where NaN is a possible measurement
  void Set(Statistic statistic, float measured);
};

// Who the samples come from. One run has many ranks, one rank many incarnations.
struct RankKey {
  std::uint64_t run_id = 0;  // the store's key of the run
  std::uint32_t rank = 0;
  std::uint32_t incarnation = 0;
  auto operator<=>(const RankKey&) const = default;
};

// A rank beyond it is a damaged or hostile header or file; the largest known training jobs have some ten thousand
// ranks.
inline constexpr std::uint32_t kRanksMax = 1u << 16;

// What a thread of a training process that is gone did last, as far as its records tell.
struct LastPlace {
  std::uint32_t thread = 0;  // as the process counted it; 0: it had ended before
  std::uint32_t site = 0;
  std::uint64_t step = 0;
  Phase phase = Phase::kForward;
  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, thread, site, step, phase);
  }
};

// One step of one rank, assembled. Samples are ordered by (phase, site). `records_missing` > 0: drops, so silence of a
// site proves nothing; `complete` false: the STEP record never came (the rank died, or detached in mid-step).
struct StepFrame {
  RankKey rank;
  std::uint64_t step = 0;
  bool complete = false;
  bool applied = false;
  bool training = true;  // false: evaluation passes only (kept, never judged as training)
  std::uint64_t records_received = 0;
  std::uint64_t records_missing = 0;
  std::uint64_t time_ns = 0;  // CLOCK_MONOTONIC of the last record
  std::vector<Sample> samples;
};

// A call of the optimizer (or session.step()) ended it: what counts as a step. What the agent closed by itself at the
// end, an evaluation pass or half a step, does not.
bool EndedByOptimizer(const StepFrame& frame);

// The static side of one rank: sites and graph, from the manifest.
struct Topology {
  RunEntry run;
  std::vector<SiteEntry> sites;  // index = id
  std::vector<EdgeEntry> edges;
  std::vector<std::uint32_t> sinks;
  std::vector<ParameterInitEntry> parameter_inits;
  std::vector<MarkEntry> marks;
  bool ready = false;
};

}  // namespace neuraldbg
