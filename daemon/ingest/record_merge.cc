#include "daemon/ingest/record_merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace neuraldbg {
namespace {

constexpr double kSecondsPerNanosecond = 1e-9;

bool Valid(const Record& record, unsigned field) { return (record.validity & ValidityBit(field)) != 0; }

// Counts on the wire saturate; a merged count that wrapped around would look small.
std::uint32_t AddSaturated(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t sum = a + b;
  return sum < a ? std::numeric_limits<std::uint32_t>::max() : sum;
}

void MergeTensor(TensorPayload& into, const TensorPayload& part) {
  into.numel += part.numel;
  into.nan_count = AddSaturated(into.nan_count, part.nan_count);
  into.inf_count = AddSaturated(into.inf_count, part.inf_count);
  into.zero_count = AddSaturated(into.zero_count, part.zero_count);
  into.saturated_count = AddSaturated(into.saturated_count, part.saturated_count);
  into.tiny_count = AddSaturated(into.tiny_count, part.tiny_count);
  // A unit that was alive in any call is alive, so the smallest count bounds the number of units dead in all of them.
  into.dead_units = std::min(into.dead_units, part.dead_units);
  into.units = std::max(into.units, part.units);
  into.sum += part.sum;
  into.sum_abs += part.sum_abs;
  into.sum_squares += part.sum_squares;
  into.max_abs = std::max(into.max_abs, part.max_abs);
  into.bits += part.bits;  // wrap-around by definition
}

void MergeLoss(LossPayload& into, const LossPayload& part, std::uint32_t calls) {
  into.value += part.value;
  into.label_count += part.label_count;
  into.label_ignored += part.label_ignored;
  into.label_sum += part.label_sum;
  into.label_sum_squares += part.label_sum_squares;
  into.logit_gradient_sum_abs += part.logit_gradient_sum_abs;
  into.logsumexp_mean += (part.logsumexp_mean - into.logsumexp_mean) / (calls + 1.0);  // running mean over calls
  into.loss_kind = part.loss_kind;
  into.reduction = part.reduction;
  into.class_count = std::max(into.class_count, part.class_count);
  into.nonfinite = AddSaturated(into.nonfinite, part.nonfinite);
}

// Means stay means, weighted by what they were taken over.
double WeightedMean(double a, std::uint64_t weight_a, double b, std::uint64_t weight_b) {
  const double total = static_cast<double>(weight_a) + static_cast<double>(weight_b);
  return total > 0 ? (a * static_cast<double>(weight_a) + b * static_cast<double>(weight_b)) / total : a;
}

void MergeAttention(AttentionPayload& into, const AttentionPayload& part) {
  into.entropy_mean = WeightedMean(into.entropy_mean, into.rows, part.entropy_mean, part.rows);
  into.logit_max = std::max(into.logit_max, part.logit_max);
  into.logit_max_bound = std::max(into.logit_max_bound, part.logit_max_bound);
  into.rows += part.rows;
  into.heads = std::max(into.heads, part.heads);
}

void MergeRouter(RouterPayload& into, const RouterPayload& part) {
  into.load_max = WeightedMean(into.load_max, into.tokens, part.load_max, part.tokens);
  into.load_entropy = WeightedMean(into.load_entropy, into.tokens, part.load_entropy, part.tokens);
  into.score_sum += part.score_sum;
  into.tokens += part.tokens;
  into.experts = std::max(into.experts, part.experts);
  into.unused_experts = std::min(into.unused_experts, part.unused_experts);  // used in any call is used
}

// StatisticIndex for all kinds, read without a call: this is on the path of every sample.
using IndexRow = std::array<std::uint8_t, static_cast<std::size_t>(Statistic::kCount)>;
const std::array<IndexRow, kRecordKindCount> kIndexRows = [] {
  std::array<IndexRow, kRecordKindCount> rows{};
  for (std::size_t kind = 0; kind < rows.size(); ++kind) {
    for (std::size_t statistic = 0; statistic < rows[kind].size(); ++statistic) {
      rows[kind][statistic] =
          static_cast<std::uint8_t>(StatisticIndex(static_cast<RecordKind>(kind), static_cast<Statistic>(statistic)));
    }
  }
  return rows;
}();

// Writes statistics into a sample, each only if the payload fields it needs are valid.
class SampleWriter {
 public:
  SampleWriter(Sample& sample, const Record& record)
      : sample_(sample), record_(record), row_(kIndexRows[static_cast<std::size_t>(record.kind)]) {}
  void Put(unsigned field, Statistic statistic, double value) {
    if (Valid(record_, field)) PutAlways(statistic, value);
  }
  // For what is known without a payload field.
  void PutAlways(Statistic statistic, double value) {
    const std::size_t index = row_[static_cast<std::size_t>(statistic)];
    if (index >= kMaxStatistics) return;
    sample_.value[index] = static_cast<float>(value);
    sample_.present |= 1u << index;
  }
  void PutSeconds(unsigned field, Statistic statistic, std::uint64_t nanoseconds) {
    Put(field, statistic, static_cast<double>(nanoseconds) * kSecondsPerNanosecond);
  }
  void PutMean(unsigned field, Statistic statistic, double sum, double count) {
    if (count > 0) Put(field, statistic, sum / count);  // the mean of nothing is missing, not zero
  }
  void PutRms(unsigned field, Statistic statistic, double sum_squares, double count) {
    if (count > 0) Put(field, statistic, std::sqrt(sum_squares / count));
  }

 private:
  Sample& sample_;
  const Record& record_;
  const IndexRow& row_;
};

double Remaining(std::uint64_t numel, std::uint64_t nonfinite) {
  return numel > nonfinite ? static_cast<double>(numel - nonfinite) : 0.0;
}

void TensorSample(const MergedRecord& merged, Sample& sample) {
  const TensorPayload& t = merged.record.tensor;
  SampleWriter out(sample, merged.record);
  const double finite = Remaining(t.numel, std::uint64_t{t.nan_count} + t.inf_count);
  out.Put(0, Statistic::kNumel, static_cast<double>(t.numel));
  out.Put(1, Statistic::kNan, t.nan_count);
  out.Put(2, Statistic::kInf, t.inf_count);
  out.Put(3, Statistic::kZero, t.zero_count);
  out.Put(4, Statistic::kSaturated, t.saturated_count);
  out.Put(5, Statistic::kTiny, t.tiny_count);
  out.Put(6, Statistic::kDeadUnits, t.dead_units);
  out.PutMean(7, Statistic::kMean, t.sum, finite);
  out.PutMean(8, Statistic::kMeanAbs, t.sum_abs, finite);
  out.PutRms(9, Statistic::kRms, t.sum_squares, finite);
  if (finite > 0) out.Put(10, Statistic::kMaxAbs, static_cast<double>(t.max_abs));
  out.Put(11, Statistic::kUnits, t.units);
  out.PutAlways(Statistic::kCalls, merged.calls);
  sample.has_bits = Valid(merged.record, 12);
  sample.bits = sample.has_bits ? t.bits : 0;
}

void ParameterSample(const MergedRecord& merged, Sample& sample) {
  const ParameterPayload& p = merged.record.parameter;
  SampleWriter out(sample, merged.record);
  const double finite = Remaining(p.numel, p.value_nonfinite);
  const double finite_gradient = Remaining(p.numel, p.gradient_nonfinite);
  out.Put(0, Statistic::kNumel, static_cast<double>(p.numel));
  out.PutMean(2, Statistic::kMean, p.value_sum, finite);
  out.PutRms(3, Statistic::kRms, p.value_sum_squares, finite);
  out.PutRms(4, Statistic::kGradientRms, p.gradient_sum_squares, finite_gradient);
  out.PutRms(5, Statistic::kUpdateRms, p.update_sum_squares, static_cast<double>(p.numel));
  const double norms = std::sqrt(p.gradient_sum_squares) * std::sqrt(p.update_sum_squares);
  if (Valid(merged.record, 4) && Valid(merged.record, 5) && norms > 0) {
    out.Put(6, Statistic::kGradientDotUpdate, p.gradient_dot_update / norms);
  }
  out.Put(7, Statistic::kMaxAbs, static_cast<double>(p.value_max_abs));
  out.Put(8, Statistic::kGradientMaxAbs, static_cast<double>(p.gradient_max_abs));
  out.Put(9, Statistic::kValueNonfinite, p.value_nonfinite);
  out.Put(10, Statistic::kGradientNonfinite, p.gradient_nonfinite);
  out.Put(11, Statistic::kGradientZero, p.gradient_zero);
  out.Put(12, Statistic::kChanged, p.changed);
  sample.has_bits = Valid(merged.record, 1);
  sample.bits = sample.has_bits ? p.bits : 0;
}

void OptimizerSample(const MergedRecord& merged, Sample& sample) {
  const OptimizerPayload& o = merged.record.optimizer;
  SampleWriter out(sample, merged.record);
  out.Put(0, Statistic::kLearningRate, o.learning_rate);
  out.Put(1, Statistic::kLossScale, o.loss_scale);
  out.Put(2, Statistic::kWeightDecay, o.weight_decay);
  out.Put(3, Statistic::kGradientNorm, std::sqrt(o.gradient_sum_squares));
  out.Put(4, Statistic::kUpdateNorm, std::sqrt(o.update_sum_squares));
  out.Put(5, Statistic::kBeta1, static_cast<double>(o.beta1));
  out.Put(6, Statistic::kBeta2, static_cast<double>(o.beta2));
  out.Put(7, Statistic::kEpsilon, static_cast<double>(o.epsilon));
  out.Put(9, Statistic::kParameterCount, o.parameter_count);
  out.Put(10, Statistic::kSkippedTotal, o.skipped_total);
  out.Put(11, Statistic::kObservedCount, o.observed_count);
}

void LossSample(const MergedRecord& merged, Sample& sample) {
  const LossPayload& l = merged.record.loss;
  SampleWriter out(sample, merged.record);
  const auto labels = static_cast<double>(l.label_count);
  out.PutMean(0, Statistic::kLoss, l.value, merged.calls);
  out.Put(1, Statistic::kLabelCount, labels);
  out.Put(2, Statistic::kLabelIgnored, static_cast<double>(l.label_ignored));
  out.PutMean(3, Statistic::kLabelMean, l.label_sum, labels);
  out.PutRms(4, Statistic::kLabelRms, l.label_sum_squares, labels);
  out.Put(5, Statistic::kLogitGradientSumAbs, l.logit_gradient_sum_abs);
  out.Put(6, Statistic::kLogsumexp, l.logsumexp_mean);
  out.Put(7, Statistic::kLossKind, static_cast<double>(l.loss_kind));
  out.Put(8, Statistic::kReduction, static_cast<double>(l.reduction));
  out.Put(9, Statistic::kClassCount, l.class_count);
  out.Put(10, Statistic::kNonfinite, l.nonfinite);
  out.PutAlways(Statistic::kCalls, merged.calls);
}

void StepSample(const MergedRecord& merged, Sample& sample) {
  const StepPayload& s = merged.record.step_end;
  SampleWriter out(sample, merged.record);
  out.Put(2, Statistic::kSamples, static_cast<double>(s.samples));
  out.PutSeconds(3, Statistic::kDurationSeconds, s.duration_ns);
  out.PutSeconds(4, Statistic::kAgentSeconds, s.agent_ns);
  out.Put(5, Statistic::kMicrobatches, s.microbatches);
  out.Put(6, Statistic::kCadence, s.cadence);
  out.Put(8, Statistic::kRotationGroup, s.rotation_group);
  out.Put(9, Statistic::kRotationGroups, s.rotation_groups);
  out.Put(10, Statistic::kShedLevel, s.shed_level);
  out.Put(11, Statistic::kSkippedTotal, s.skipped_total);
  out.Put(12, Statistic::kRecompiles, s.recompiles);
}

void PhasesSample(const MergedRecord& merged, Sample& sample) {
  const PhasesPayload& p = merged.record.phases;
  SampleWriter out(sample, merged.record);
  out.PutSeconds(0, Statistic::kDataSeconds, p.data_ns);
  out.PutSeconds(1, Statistic::kForwardSeconds, p.forward_ns);
  out.PutSeconds(2, Statistic::kBackwardSeconds, p.backward_ns);
  out.PutSeconds(3, Statistic::kToFirstCollectiveSeconds, p.to_first_collective_ns);
  out.PutSeconds(4, Statistic::kSyncSeconds, p.sync_ns);
  out.PutSeconds(5, Statistic::kOptimizerSeconds, p.optimizer_ns);
  out.Put(6, Statistic::kCollectiveSequence, static_cast<double>(p.collective_sequence));
}

void AttentionSample(const MergedRecord& merged, Sample& sample) {
  const AttentionPayload& a = merged.record.attention;
  SampleWriter out(sample, merged.record);
  out.Put(0, Statistic::kLogitMax, a.logit_max);
  out.Put(1, Statistic::kEntropy, a.entropy_mean);
  out.Put(2, Statistic::kLogitMaxBound, a.logit_max_bound);
  out.Put(3, Statistic::kRows, static_cast<double>(a.rows));
  out.Put(4, Statistic::kHeads, a.heads);
  out.PutAlways(Statistic::kCalls, merged.calls);
}

void RouterSample(const MergedRecord& merged, Sample& sample) {
  const RouterPayload& r = merged.record.router;
  SampleWriter out(sample, merged.record);
  out.Put(0, Statistic::kLoadMax, r.load_max);
  out.Put(1, Statistic::kLoadEntropy, r.load_entropy);
  out.Put(2, Statistic::kScoreSum, r.score_sum);
  out.Put(3, Statistic::kTokens, static_cast<double>(r.tokens));
  out.Put(4, Statistic::kExperts, r.experts);
  out.Put(5, Statistic::kUnusedExperts, r.unused_experts);
  out.PutAlways(Statistic::kCalls, merged.calls);
}

}  // namespace

MergedRecord StartMerge(const Record& first) { return {.record = first, .calls = 1, .next = 0}; }

void Merge(MergedRecord& merged, const Record& part) {
  Record& into = merged.record;
  switch (part.kind) {
    case RecordKind::kTensor:
    case RecordKind::kBatch:
      MergeTensor(into.tensor, part.tensor);
      break;
    case RecordKind::kLoss:
      MergeLoss(into.loss, part.loss, merged.calls);
      break;
    case RecordKind::kAttention:
      MergeAttention(into.attention, part.attention);
      break;
    case RecordKind::kRouter:
      MergeRouter(into.router, part.router);
      break;
    default: {
      // States around the optimizer step, not amounts: the newest is the state after the step, and stands alone.
      into = part;
      ++merged.calls;
      return;
    }
  }
  into.flags |= part.flags;
  into.validity &= part.validity;
  into.time_ns = std::max(into.time_ns, part.time_ns);
  ++merged.calls;
}

void ToSample(const MergedRecord& merged, Sample& sample) {
  sample.site = merged.record.site;
  sample.kind = merged.record.kind;
  sample.phase = merged.record.phase;
  sample.flags = merged.record.flags;
  switch (sample.kind) {
    case RecordKind::kTensor:
    case RecordKind::kBatch:
      TensorSample(merged, sample);
      break;
    case RecordKind::kParameter:
      ParameterSample(merged, sample);
      break;
    case RecordKind::kOptimizer:
      OptimizerSample(merged, sample);
      break;
    case RecordKind::kLoss:
      LossSample(merged, sample);
      break;
    case RecordKind::kStep:
      StepSample(merged, sample);
      break;
    case RecordKind::kPhases:
      PhasesSample(merged, sample);
      break;
    case RecordKind::kAttention:
      AttentionSample(merged, sample);
      break;
    case RecordKind::kRouter:
      RouterSample(merged, sample);
      break;
    case RecordKind::kNone:
      break;
  }
}

Sample ToSample(const MergedRecord& merged) {
  Sample sample;
  ToSample(merged, sample);
  return sample;
}

}  // namespace neuraldbg
