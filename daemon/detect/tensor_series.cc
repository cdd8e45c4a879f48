#include "daemon/detect/tensor_series.h"

#include <algorithm>
#include <cmath>

namespace neuraldbg {
namespace {

using namespace threshold;

constexpr double kTinyEnergy = 1e-30;  // 2^-100: the energy of kLevelFloor, so that an all-zero input has a level

double EnergyOf(float level) { return std::exp2(2.0 * static_cast<double>(level)); }
float LevelOfEnergy(double energy) { return static_cast<float>(0.5 * std::log2(std::max(energy, kTinyEnergy))); }
// What a mechanism did to its input. Nothing comes out: the floor, whatever went in.
float Gain(float level, float input) { return level <= kLevelFloor ? kLevelFloor : level - input; }

SeriesType BackwardType(const GraphNode& node) {
  return node.sink ? SeriesType::kSinkLevel : SeriesType::kBackwardLevel;
}

}  // namespace

void TensorSeries::Grow(const GraphGrowth& growth) {
  GraphGrowth::Move(growth.node_from, nodes_);
  GraphGrowth::Move(growth.batch_from, batches_);
  GraphGrowth::Move(growth.batch_from, batch_zero_shares_);
}

std::uint64_t TensorSeries::TickOf(std::uint64_t step) const {
  for (std::uint64_t back = 1; back <= Series::kHistory && back <= ticks_; ++back) {
    if (StepOf(ticks_ - back) <= step) return ticks_ - back;
  }
  return ticks_;
}

std::uint64_t TensorSeries::TickShowing(std::uint64_t step) const {
  const std::uint64_t tick = TickOf(step);
  return tick + 1 < ticks_ && StepOf(tick) < step ? tick + 1 : tick;
}

std::uint64_t TensorSeries::FirstUnseen(std::uint64_t step) const {
  const std::uint64_t tick = TickOf(step);
  const bool remembered = tick < ticks_ && tick > 0 && tick - 1 + Series::kHistory >= ticks_;
  return remembered && StepOf(tick) == step ? StepOf(tick - 1) + 1 : step;
}

void TensorSeries::Observe(const Observation& observation, DetectorOutput& output) {
  hot_ = false;
  if (!observation.tensors_observed) return;
  steps_[ticks_ % Series::kHistory] = observation.step;
  if (ticks_ < kRoutedSteps) LearnRouting(observation);
  ObserveBatches(observation, output);
  ObserveForward(observation);
  ObserveBackward(observation);
  ++ticks_;
  ProposeRegimes(observation, output);
}

// Experts and dropped layers see another share of the batch at every step: their size varies against that of the other
// sites, or they are absent from steps that lost no record.
void TensorSeries::LearnRouting(const Observation& observation) {
  std::vector<float> ratios;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const TensorReading& reading = observation.forward[i];
    if (!reading.present) {
      if (observation.sharp) ++nodes_[i].absent;
      continue;
    }
    if (nodes_[i].forward_numel <= 0) nodes_[i].forward_numel = reading.numel;
    if (nodes_[i].forward_numel > 0 && reading.numel > 0) ratios.push_back(reading.numel / nodes_[i].forward_numel);
  }
  if (ratios.empty()) return;
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2), ratios.end());
  const float common = ratios[ratios.size() / 2];  // a ramp of the batch size changes all sites alike
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const TensorReading& reading = observation.forward[i];
    if (!reading.present || nodes_[i].forward_numel <= 0 || reading.numel <= 0) continue;
    const float ratio = reading.numel / nodes_[i].forward_numel / common;
    if (std::fabs(std::log2(ratio)) > static_cast<float>(kRoutedNumel)) ++nodes_[i].odd_numel;
  }
  if (ticks_ + 1 != kRoutedSteps) return;
  constexpr auto kLimit = static_cast<std::uint16_t>(static_cast<double>(kRoutedSteps) * kRoutedShare);
  for (NodeSeries& node : nodes_) node.routed = node.odd_numel > kLimit || node.absent > kLimit;
}

void TensorSeries::ObserveBatches(const Observation& observation, DetectorOutput& output) {
  for (std::uint32_t i = 0; i < batches_.size(); ++i) {
    const TensorReading& reading = observation.batches[i];
    const std::uint32_t site = observation.graph->batches()[i];
    float zero_share = kNoLevel, level = reading.level;
    SeriesType type = SeriesType::kBatchLevel;
    if (observation.graph->batch_is_integer(i)) {
      // Token ids are names, not amounts; what is stable about them is how widely they spread and how many are zero.
      type = SeriesType::kTokenSpread;
      zero_share = reading.zero_share;
      if (level > kLevelFloor) {
        const double variance = EnergyOf(level) - static_cast<double>(reading.mean) * static_cast<double>(reading.mean);
        level = variance > 0 ? LevelOfEnergy(variance) : kLevelFloor;
      }
    }
    batches_[i].Observe(type, ticks_, level, kMinimumSamples, kEntryDelay);
    batch_zero_shares_[i].Observe(SeriesType::kTokenShare, ticks_, zero_share, kMinimumSamples, kEntryDelay);
    const Series& series = batches_[i];
    hot_ |= series.Hot() || batch_zero_shares_[i].Hot();
    if (series.Flagged()) {
      output.regimes.Propose(site, Phase::kData, Regime::kShifted, Statistic::kRms,
                             static_cast<double>(std::exp2(level)), std::exp2(series.center() - series.threshold()),
                             std::exp2(series.center() + series.threshold()));
    } else if (batch_zero_shares_[i].Flagged()) {
      output.regimes.Propose(site, Phase::kData, Regime::kShifted, Statistic::kZero,
                             static_cast<double>(zero_share * reading.numel), 0,
                             (batch_zero_shares_[i].center() + kShareMinimum) * static_cast<double>(reading.numel));
    }
  }
}

float TensorSeries::BatchLevel(const SiteGraph& graph, std::uint64_t tick) const {
  double energy = 0;
  bool any = false;
  for (std::uint32_t i = 0; i < batches_.size(); ++i) {
    const float level = batches_[i].Value(tick);
    if (graph.batch_is_integer(i) || !std::isfinite(level)) continue;
    energy += EnergyOf(level);
    any = true;
  }
  return any ? LevelOfEnergy(energy) : 0.0F;
}

void TensorSeries::ObserveForward(const Observation& observation) {
  const SiteGraph& graph = *observation.graph;
  energy_.assign(nodes_.size(), 0);
  level_.assign(nodes_.size(), kNoLevel);
  const double batch_energy = EnergyOf(BatchLevel(graph, ticks_));
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    level_[i] = observation.forward[i].level;
    energy_[i] = EnergyOf(level_[i]);  // NaN stays NaN: a gain with an unknown input is unknown
  }
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const auto parents = graph.parents(i);
    double input = graph.nodes()[i].reads_batch ? batch_energy : 0.0;
    for (const std::uint32_t parent : parents) input += energy_[parent];
    if (parents.empty() && !graph.nodes()[i].reads_batch) input = 1.0;
    NodeSeries& node = nodes_[i];
    const bool silent = node.routed;
    const float gain = Gain(level_[i], LevelOfEnergy(input));
    node.forward_level.Observe(SeriesType::kForwardLevel, ticks_, silent ? kNoLevel : level_[i], kMinimumSamples,
                               kEntryDelay);
    node.forward_gain.Observe(SeriesType::kForwardGain, ticks_, silent || std::isnan(input) ? kNoLevel : gain,
                              kMinimumSamples, kEntryDelay);
    const TensorReading& reading = observation.forward[i];
    node.dead_share.Observe(SeriesType::kDeadShare, ticks_, silent ? kNoLevel : reading.dead_share, kMinimumSamples,
                            kEntryDelay);
    node.saturated_share.Observe(SeriesType::kSaturatedShare, ticks_, silent ? kNoLevel : reading.saturated_share,
                                 kMinimumSamples, kEntryDelay);
    hot_ |= node.forward_level.Hot() || node.forward_gain.Hot() || node.dead_share.Hot() || node.saturated_share.Hot();
  }
}

void TensorSeries::ObserveBackward(const Observation& observation) {
  const SiteGraph& graph = *observation.graph;
  const float scale = std::log2(observation.loss_scale());
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const TensorReading& reading = observation.backward[i];
    float level = reading.level;
    if (reading.present && reading.numel > 0 && level > kLevelFloor) {
      if (nodes_[i].gradient_numel <= 0) nodes_[i].gradient_numel = reading.numel;
      level += std::log2(reading.numel / nodes_[i].gradient_numel) - scale;
    }
    level_[i] = level;
    energy_[i] = EnergyOf(level);
  }
  double root_energy = 0;
  for (const std::uint32_t root : graph.gradient_roots()) root_energy += energy_[root];
  const float root_level = graph.gradient_roots().empty() ? 0.0F : LevelOfEnergy(root_energy);
  root_levels_[ticks_ % Series::kHistory] = std::isnan(root_energy) ? kNoLevel : root_level;
  const auto roots = graph.gradient_roots();
  const auto is_zero = [&](std::uint32_t root) { return level_[root] <= kLevelFloor; };
  if (!roots.empty() && std::all_of(roots.begin(), roots.end(), is_zero)) {
    // The loss sends nothing back (a margin that every sample keeps): nothing is known of what a gradient would have
    // done.
    std::fill(level_.begin(), level_.end(), kNoLevel);
    std::fill(energy_.begin(), energy_.end(), std::numeric_limits<double>::quiet_NaN());
  }

  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const GraphNode& info = graph.nodes()[i];
    double input = 0;
    bool fed = false;
    for (const std::uint32_t consumer : graph.consumers(i)) {
      if (graph.nodes()[consumer].gradient_site == kNoSite) continue;
      input += energy_[consumer];
      fed = true;
    }
    // Nothing feeds a sink but the loss: its gradient has a level, which only alarms upward, and no gain.
    const bool gainless = !fed && info.sink;
    if (!fed) input = 1.0;
    NodeSeries& node = nodes_[i];
    const bool silent = node.routed || std::isnan(level_[i]);
    const float relative = info.sink ? level_[i] : level_[i] - RootLevel(ticks_);
    node.backward_level.Observe(BackwardType(info), ticks_, silent ? kNoLevel : relative, kMinimumSamples, kEntryDelay);
    node.backward_gain.Observe(
        SeriesType::kBackwardGain, ticks_,
        silent || gainless || std::isnan(input) ? kNoLevel : Gain(level_[i], LevelOfEnergy(input)), kMinimumSamples,
        kEntryDelay);
    hot_ |= node.backward_level.Hot() || node.backward_gain.Hot();
  }
}

float TensorSeries::AbsoluteBackwardLevel(const SiteGraph& graph, std::uint32_t node, std::uint64_t tick) const {
  const float relative = nodes_[node].backward_level.Value(tick);
  return graph.nodes()[node].sink ? relative : relative + RootLevel(tick);
}

void TensorSeries::ProposeRegimes(const Observation& observation, DetectorOutput& output) {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const NodeSeries& node = nodes_[i];
    if (node.forward_level.Flagged() || node.forward_gain.Flagged() || node.dead_share.Flagged() ||
        node.saturated_share.Flagged()) {
      ProposeForward(observation, i, output);
    }
    if (node.backward_level.Flagged() || node.backward_gain.Flagged()) ProposeBackward(observation, i, output);
  }
}

void TensorSeries::ProposeForward(const Observation& observation, std::uint32_t index, DetectorOutput& output) {
  const NodeSeries& node = nodes_[index];
  const GraphNode& info = observation.graph->nodes()[index];
  const TensorReading& reading = observation.forward[index];
  const double numel = static_cast<double>(reading.numel);
  if (node.dead_share.Flagged() && info.activation) {
    output.regimes.Propose(info.site, Phase::kForward, Regime::kDead, Statistic::kDeadUnits,
                           static_cast<double>(reading.dead_share), 0, node.dead_share.center() + kShareMinimum);
  } else if (node.saturated_share.Flagged() && info.squashing) {
    output.regimes.Propose(info.site, Phase::kForward, Regime::kSaturated, Statistic::kSaturated,
                           static_cast<double>(reading.saturated_share) * numel, 0,
                           (node.saturated_share.center() + kShareMinimum) * numel);
  } else if (node.forward_level.Flagged() || node.forward_gain.Flagged()) {
    // A gain is told as the level that its input would have given.
    const bool by_level = node.forward_level.Flagged();
    const Series& series = by_level ? node.forward_level : node.forward_gain;
    const double input = by_level ? 0 : static_cast<double>(reading.level - series.Value(ticks_ - 1));
    output.regimes.Propose(info.site, Phase::kForward, Regime::kShifted, Statistic::kRms,
                           static_cast<double>(std::exp2(reading.level)),
                           std::exp2(series.center() + input - series.threshold()),
                           std::exp2(series.center() + input + series.threshold()));
  }
}

void TensorSeries::ProposeBackward(const Observation& observation, std::uint32_t index, DetectorOutput& output) {
  const NodeSeries& node = nodes_[index];
  const bool by_level = node.backward_level.Flagged();
  const Series& series = by_level ? node.backward_level : node.backward_gain;
  const double level = static_cast<double>(observation.backward[index].level);
  const double input = level - static_cast<double>(series.Value(ticks_ - 1));
  const Regime regime = series.DeviationOrZero(ticks_ - 1) < 0 ? Regime::kVanishing : Regime::kExploding;
  output.regimes.Propose(observation.graph->nodes()[index].gradient_site, Phase::kBackward, regime, Statistic::kRms,
                         std::exp2(level), std::exp2(series.center() + input - series.threshold()),
                         std::exp2(series.center() + input + series.threshold()));
}

void TensorSeries::ForgetBaselines() {
  for (NodeSeries& node : nodes_) node.ForgetBaselines();
  for (Series& series : batches_) series.ForgetBaseline();
  for (Series& series : batch_zero_shares_) series.ForgetBaseline();
  hot_ = false;
}

}  // namespace neuraldbg
