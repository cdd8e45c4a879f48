#include "daemon/infer/change_split.h"

#include <cmath>

namespace neuraldbg {
namespace {

double LogarithmicMean(double a, double b) {
  if (!(a > 0) || !(b > 0)) return 0;
  if (std::fabs(a - b) < 1e-12 * a) return a;
  return (a - b) / (std::log(a) - std::log(b));
}

double Energy(double level) { return std::exp2(2 * level); }

class Splitter {
 public:
  Splitter(const RankDetectors& detectors, bool backward, std::uint64_t tick)
      : graph_(detectors.graph()), tensors_(detectors.tensors()), backward_(backward), tick_(tick) {}

  ChangeSplit Split(std::uint32_t symptom) {
    result_.contribution.assign(graph_.node_count(), 0);
    weight_.assign(graph_.node_count(), 0);
    weight_[symptom] = 1;
    result_.total = Now(symptom) - Before(symptom);
    for (std::uint32_t i = 0; i < graph_.node_count(); ++i) Pass(backward_ ? i : graph_.node_count() - 1 - i);
    return std::move(result_);
  }

 private:
  // Gradients count relative to what enters at the sinks, so a sink itself has not changed.
  bool Entry(std::uint32_t node) const { return backward_ && graph_.nodes()[node].sink; }
  double Now(std::uint32_t node) const {
    if (Entry(node)) {
      return static_cast<double>(tensors_.node(node).backward_level.Value(tick_) - tensors_.RootLevel(tick_));
    }
    return static_cast<double>(backward_ ? tensors_.node(node).backward_level.Value(tick_)
                                         : tensors_.node(node).forward_level.Value(tick_));
  }
  double Before(std::uint32_t node) const {
    if (Entry(node)) return Now(node);
    const Series& series = backward_ ? tensors_.node(node).backward_level : tensors_.node(node).forward_level;
    return Now(node) - series.DeviationOrZero(tick_);
  }

  // Credits the node with the part of its change that its inputs do not have, and hands the rest on to them.
  void Pass(std::uint32_t node) {
    const double weight = weight_[node];
    const double now = Now(node), before = Before(node);
    if (weight == 0 || !std::isfinite(now) || !std::isfinite(before)) return;
    const auto inputs = backward_ ? graph_.consumers(node) : graph_.parents(node);
    const bool batch = !backward_ && graph_.nodes()[node].reads_batch;
    double sum_now = 0, sum_before = 0;
    const double batch_now = batch ? static_cast<double>(tensors_.BatchLevel(graph_, tick_)) : 0;
    const double batch_before = batch_now - BatchDeviation();
    if (batch) sum_now += Energy(batch_now), sum_before += Energy(batch_before);
    for (const std::uint32_t input : inputs) {
      if (!std::isfinite(Now(input)) || !std::isfinite(Before(input))) continue;
      sum_now += Energy(Now(input));
      sum_before += Energy(Before(input));
    }
    double from_inputs = 0;
    const double mean = LogarithmicMean(sum_now, sum_before);
    if (mean > 0) {
      const auto share = [&](double a, double b) { return LogarithmicMean(Energy(a), Energy(b)) / mean; };
      if (batch) {
        const double lambda = share(batch_now, batch_before);
        from_inputs += lambda * (batch_now - batch_before);
        result_.batch += weight * lambda * (batch_now - batch_before);
      }
      for (const std::uint32_t input : inputs) {
        if (!std::isfinite(Now(input)) || !std::isfinite(Before(input))) continue;
        const double lambda = share(Now(input), Before(input));
        from_inputs += lambda * (Now(input) - Before(input));
        weight_[input] += weight * lambda;
      }
    }
    result_.contribution[node] += weight * (now - before - from_inputs);
  }

  double BatchDeviation() const {
    for (std::uint32_t i = 0; i < graph_.batches().size(); ++i) {
      if (!graph_.batch_is_integer(i)) return tensors_.batch(i).DeviationOrZero(tick_);
    }
    return 0;
  }

  const SiteGraph& graph_;
  const TensorSeries& tensors_;
  bool backward_;
  std::uint64_t tick_;
  std::vector<double> weight_;
  ChangeSplit result_;
};

}  // namespace

ChangeSplit SplitChange(const RankDetectors& detectors, bool backward, std::uint32_t node, std::uint64_t tick) {
  return Splitter(detectors, backward, tick).Split(node);
}

}  // namespace neuraldbg
