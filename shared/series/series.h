// One scalar over time: its baseline, what the last samples were, and how far they lay from normal.
//
// A series is indexed by its family's sample clock (0, 1, 2 … counts the steps in which the family was observed), not
// by training steps, so that sampling every n-th step or rotating parameters leaves no holes in it. A sample may still
// be missing; missing is never zero.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "shared/series/baseline.h"

namespace neuraldbg {

enum class SeriesType : std::uint8_t {
  kBatchLevel,    // log2 rms of a float input
  kTokenSpread,   // log2 standard deviation of an integer input
  kTokenShare,    // share of zeros of an integer input
  kForwardLevel,  // log2 rms of a module output, glue input or merge
  kForwardGain,   // the same minus the combined level of what the node computed it from
  kDeadShare,
  kSaturatedShare,
  kBackwardLevel,  // log2 rms of a gradient, relative to the gradient that enters at the sinks
  kSinkLevel,      // log2 rms of the gradient at a sink, absolute
  kBackwardGain,   // against the combined gradients of the consumers
  kGradientLevel,  // parameters: log2 rms of the gradient
  kGradientGain,   // against the gradient at the module's output
  kUpdateLevel,
  kUpdatePerRate,      // update / learning rate
  kUpdatePerGradient,  // update / (learning rate x gradient)
  kParameterLevel,
  kLoss,
};

// What makes a deviation of a type matter.
struct SeriesRule {
  double minimum, factor, sigma_floor;
  bool share;  // absolute threshold, whatever the spread
  bool only_up;
};
const SeriesRule& RuleOf(SeriesType type);

class Series {
 public:
  static constexpr std::uint32_t kHistory = 16;  // covers the delayed entry and the search for the onset
  static_assert(kHistory > threshold::kLookBack + threshold::kOnsetHorizon);

  // Takes the sample of family clock `tick` (consecutive calls have consecutive ticks). NaN: missing.
  void Observe(SeriesType type, std::uint64_t tick, float value, std::uint32_t minimum_samples, std::uint32_t delay);

  // Of the sample at `tick`, which must be one of the last kHistory; otherwise missing.
  float Value(std::uint64_t tick) const { return Held(tick) ? value_[tick % kHistory] : kNan; }
  float Deviation(std::uint64_t tick) const { return Held(tick) ? deviation_[tick % kHistory] : kNan; }
  float Evidence(std::uint64_t tick) const { return Held(tick) ? evidence_[tick % kHistory] : 0.0F; }
  double DeviationOrZero(std::uint64_t tick) const {
    const float deviation = Deviation(tick);
    return std::isfinite(deviation) ? static_cast<double>(deviation) : 0.0;
  }
  // Alarm: two flagged samples of the last three, or a single one that is far out, or (gains) a small sudden step that
  // stays.
  bool Hot() const;
  bool SteppedAndStayed() const;
  double step_level() const;       // log2: what such a step has to exceed
  std::uint64_t StepTick() const;  // where such a step began, if SteppedAndStayed
  bool Flagged() const { return next_ > 0 && Evidence(next_ - 1) >= 1; }
  // What came before says nothing about what follows (a hole in the record): the baseline is learnt anew.
  void ForgetBaseline() {
    baseline_ = Baseline();
    deviation_.fill(kNan);
    evidence_.fill(0);
    usable_ = flagged_run_ = 0;
  }
  // Leaves an evidence of 0 at the newest sample: a rule outside knows a harmless reason for the deviation.
  void Excuse() {
    if (next_ > 0) evidence_[(next_ - 1) % kHistory] = 0;
  }

  double center() const { return baseline_.center(); }
  double threshold() const { return static_cast<double>(threshold_); }
  double sigma(double floor) const { return baseline_.sigma(floor); }
  std::uint32_t samples() const { return baseline_.count(); }
  std::uint64_t next_tick() const { return next_; }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, baseline_, value_, deviation_, evidence_, next_, refreshed_, usable_, flagged_run_, threshold_,
           type_);
  }

 private:
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  bool Held(std::uint64_t tick) const { return tick < next_ && tick + kHistory >= next_; }
  void Judge(const SeriesRule& rule, std::uint64_t tick, float value, std::uint32_t minimum_samples, double lag);
  void AdmitDelayed(std::uint64_t tick, std::uint32_t delay, bool flagged);

  Baseline baseline_;
  std::array<float, kHistory> value_{}, deviation_{}, evidence_{};
  std::uint64_t next_ = 0;       // tick of the next sample
  std::uint64_t refreshed_ = 0;  // tick at which the baseline was last recomputed
  std::uint32_t usable_ = 0;     // bit tick % kHistory: the sample may enter the baseline
  std::uint32_t flagged_run_ = 0;
  SeriesType type_ = SeriesType::kForwardLevel;
  float threshold_ = 0;  // alarm level that the newest sample was held against
};

}  // namespace neuraldbg
