#include "daemon/detect/observation.h"

#include <algorithm>

namespace neuraldbg {
namespace {

using Kind = SiteUse::Kind;

float Or(const Sample& sample, Statistic statistic, float fallback) {
  return sample.Has(statistic) ? sample.Get(statistic) : fallback;
}

// Counts and enums travel as floats; the bytes behind them are not ours, so NaN and out-of-range values must not reach
// a conversion.
std::uint32_t CountOr(const Sample& sample, Statistic statistic, std::uint32_t fallback, std::uint32_t largest) {
  const float value = Or(sample, statistic, kNoLevel);
  return value >= 0 && value <= static_cast<float>(largest) ? static_cast<std::uint32_t>(value) : fallback;
}

// A sum of squares can overflow while every element is finite; the maximum then still tells the level.
float LevelOf(float rms, float max_abs) {
  if (std::isnan(rms)) return kNoLevel;
  if (rms <= 0) return threshold::kLevelFloor;
  if (std::isinf(rms)) return std::isfinite(max_abs) && max_abs > 0 ? std::log2(max_abs) : kNoLevel;
  return std::max(std::log2(rms), threshold::kLevelFloor);
}

TensorReading ReadTensor(const Sample& sample) {
  TensorReading reading;
  reading.present = true;
  reading.flags = sample.flags;
  reading.numel = Or(sample, Statistic::kNumel, 0);
  reading.infinite = Or(sample, Statistic::kInf, 0);
  reading.nonfinite = Or(sample, Statistic::kNan, 0) + reading.infinite;
  reading.max_abs = Or(sample, Statistic::kMaxAbs, kNoLevel);
  reading.mean = Or(sample, Statistic::kMean, kNoLevel);
  reading.mean_abs = Or(sample, Statistic::kMeanAbs, kNoLevel);
  const bool empty = reading.numel > 0 && reading.nonfinite >= reading.numel;
  if (!empty) reading.level = LevelOf(Or(sample, Statistic::kRms, kNoLevel), reading.max_abs);
  const float units = Or(sample, Statistic::kUnits, 0);
  if (units > 0 && sample.Has(Statistic::kDeadUnits)) reading.dead_share = sample.Get(Statistic::kDeadUnits) / units;
  if (reading.numel > 0) {
    reading.saturated_share = Or(sample, Statistic::kSaturated, kNoLevel) / reading.numel;
    reading.zero_share = Or(sample, Statistic::kZero, kNoLevel) / reading.numel;
  }
  return reading;
}

ParameterReading ReadParameter(const Sample& sample) {
  ParameterReading reading;
  reading.present = true;
  reading.gradient_present = (sample.flags & kFlagGradPresent) != 0 || sample.Has(Statistic::kGradientRms);
  reading.has_bits = sample.has_bits;
  reading.bits = sample.bits;
  reading.has_changed = sample.Has(Statistic::kChanged);
  reading.changed = Or(sample, Statistic::kChanged, 1) > 0;
  reading.level = LevelOf(Or(sample, Statistic::kRms, kNoLevel), Or(sample, Statistic::kMaxAbs, kNoLevel));
  reading.gradient_level =
      LevelOf(Or(sample, Statistic::kGradientRms, kNoLevel), Or(sample, Statistic::kGradientMaxAbs, kNoLevel));
  reading.update_level = LevelOf(Or(sample, Statistic::kUpdateRms, kNoLevel), kNoLevel);
  reading.cosine = Or(sample, Statistic::kGradientDotUpdate, kNoLevel);
  reading.value_nonfinite = Or(sample, Statistic::kValueNonfinite, 0);
  reading.gradient_nonfinite = Or(sample, Statistic::kGradientNonfinite, 0);
  return reading;
}

LossReading ReadLoss(const Sample& sample) {
  LossReading reading;
  reading.value = Or(sample, Statistic::kLoss, kNoLevel);
  reading.present = sample.Has(Statistic::kLoss) || sample.Has(Statistic::kNonfinite);
  reading.finite = sample.Has(Statistic::kLoss) ? std::isfinite(reading.value) : true;
  if (Or(sample, Statistic::kNonfinite, 0) > 0) reading.finite = false;
  reading.label_count = Or(sample, Statistic::kLabelCount, kNoLevel);
  reading.label_ignored = Or(sample, Statistic::kLabelIgnored, kNoLevel);
  reading.logit_gradient_sum_abs = Or(sample, Statistic::kLogitGradientSumAbs, kNoLevel);
  reading.kind = static_cast<LossKind>(CountOr(sample, Statistic::kLossKind, 0, 5));
  reading.reduction = static_cast<Reduction>(CountOr(sample, Statistic::kReduction, 0, 3));
  return reading;
}

}  // namespace

void Observation::Reset(const SiteGraph& site_graph) {
  graph = &site_graph;
  forward.assign(site_graph.nodes().size(), TensorReading{});
  backward.assign(site_graph.nodes().size(), TensorReading{});
  parameters.assign(site_graph.parameters().size(), ParameterReading{});
  batches.assign(site_graph.batches().size(), TensorReading{});
  optimizers.assign(site_graph.optimizers().size(), OptimizerReading{});
  loss = LossReading{};
  found_inf = dirty = has_step = tensors_observed = any_nonfinite = false;
  rotation_groups = 1;
  shed_level = 0;
}

void Observation::Decode(const SiteGraph& site_graph, const StepFrame& frame) {
  Reset(site_graph);
  step = frame.step;
  applied = frame.applied;
  complete = frame.complete;
  sharp = frame.complete && frame.records_missing == 0;
  for (const Sample& sample : frame.samples) DecodeSample(sample);
  any_nonfinite |= loss.present && !loss.finite;
}

void Observation::DecodeSample(const Sample& sample) {
  const SiteUse use = graph->use(sample.site);
  const auto tensor = [&](std::vector<TensorReading>& readings) {
    readings[use.index] = ReadTensor(sample);
    any_nonfinite |= readings[use.index].nonfinite > 0;
  };
  switch (use.kind) {
    case Kind::kForward:
      if (sample.kind != RecordKind::kTensor) return;
      tensor(forward);
      tensors_observed = true;
      return;
    case Kind::kBackward:
      if (sample.kind == RecordKind::kTensor) tensor(backward);
      return;
    case Kind::kBatch:
      if (sample.kind == RecordKind::kBatch || sample.kind == RecordKind::kTensor) tensor(batches);
      return;
    case Kind::kParameter: {
      if (sample.kind != RecordKind::kParameter) return;
      const ParameterReading reading = ReadParameter(sample);
      parameters[use.index] = reading;
      any_nonfinite |= reading.value_nonfinite > 0 || reading.gradient_nonfinite > 0;
      return;
    }
    case Kind::kOptimizer:
      if (sample.kind != RecordKind::kOptimizer) return;
      optimizers[use.index] = {true, Or(sample, Statistic::kLearningRate, kNoLevel),
                               Or(sample, Statistic::kLossScale, kNoLevel)};
      found_inf |= (sample.flags & kFlagFoundInf) != 0;
      return;
    case Kind::kLoss:
      if (sample.kind == RecordKind::kLoss) loss = ReadLoss(sample);
      return;
    case Kind::kStep:
      if (sample.kind != RecordKind::kStep) return;
      has_step = true;
      dirty = (sample.flags & kFlagGradDirty) != 0;
      found_inf |= (sample.flags & kFlagFoundInf) != 0;
      rotation_groups = std::max(1U, CountOr(sample, Statistic::kRotationGroups, 1, 1U << 16));
      shed_level = CountOr(sample, Statistic::kShedLevel, 0, 255);
      return;
    case Kind::kNone:
      return;
  }
}

float Observation::learning_rate() const {
  float largest = kNoLevel;
  for (const OptimizerReading& group : optimizers) {
    if (group.present && !std::isnan(group.learning_rate)) largest = std::fmax(largest, group.learning_rate);
  }
  return largest;
}

float Observation::loss_scale() const {
  for (const OptimizerReading& group : optimizers) {
    if (group.present && std::isfinite(group.loss_scale) && group.loss_scale > 0) return group.loss_scale;
  }
  return 1.0F;
}

}  // namespace neuraldbg
