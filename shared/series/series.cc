#include "shared/series/series.h"

#include <algorithm>

namespace neuraldbg {
namespace {

using namespace threshold;

// While the window fills, the baseline follows every second sample; later every fourth is enough, because one sample of
// 48 hardly moves a median.
constexpr std::uint64_t kRefreshYoung = 2, kRefreshMature = 4;

constexpr SeriesRule kLevel{kLevelMinimum, kLevelFactor, kLevelSigmaFloor, false, false};
constexpr SeriesRule kGain{kGainMinimum, kGainFactor, kGainSigmaFloor, false, false};
constexpr SeriesRule kShare{kShareMinimum, 0, kLevelSigmaFloor, true, true};
constexpr SeriesRule kToken{kTokenMinimum, kTokenFactor, kGainSigmaFloor, false, false};
constexpr SeriesRule kTokenZero{kShareMinimum, 0, kLevelSigmaFloor, true, false};
constexpr SeriesRule kSink{kLevelMinimum, kLevelFactor, kLevelSigmaFloor, false, true};
constexpr SeriesRule kUpdate{kLevelMinimum, kUpdateFactor, kLevelSigmaFloor, false, false};
constexpr SeriesRule kUpdateRatio{kGainMinimum, kUpdateFactor, kGainSigmaFloor, false, false};
constexpr SeriesRule kLossRule{kLossMinimum, kLossFactor, kLevelSigmaFloor, false, true};

// How many ticks late the sample of `tick` is when it enters; short at the start, where there is nothing to protect
// yet.
std::uint64_t DelayAt(std::uint64_t tick, std::uint32_t delay) { return std::min<std::uint64_t>(delay, tick / 4); }

}  // namespace

const SeriesRule& RuleOf(SeriesType type) {
  switch (type) {
    case SeriesType::kForwardGain:
    case SeriesType::kBackwardGain:
    case SeriesType::kGradientGain:
      return kGain;
    case SeriesType::kDeadShare:
    case SeriesType::kSaturatedShare:
      return kShare;
    case SeriesType::kTokenSpread:
      return kToken;
    case SeriesType::kTokenShare:
      return kTokenZero;
    case SeriesType::kSinkLevel:
      return kSink;
    case SeriesType::kUpdateLevel:
      return kUpdate;
    case SeriesType::kUpdatePerRate:
    case SeriesType::kUpdatePerGradient:
      return kUpdateRatio;
    case SeriesType::kLoss:
      return kLossRule;
    case SeriesType::kBatchLevel:
    case SeriesType::kForwardLevel:
    case SeriesType::kBackwardLevel:
    case SeriesType::kGradientLevel:
    case SeriesType::kParameterLevel:
      break;
  }
  return kLevel;
}

void Series::Observe(SeriesType type, std::uint64_t tick, float value, std::uint32_t minimum_samples,
                     std::uint32_t delay) {
  const std::uint64_t period = baseline_.count() < 2 * kWindow ? kRefreshYoung : kRefreshMature;
  if (tick % period == 0 || tick == 0) {
    baseline_.Refresh();
    refreshed_ = tick;
  }
  if (next_ == 0) {  // a site that came late has no past, and missing is never zero
    value_.fill(kNan);
    deviation_.fill(kNan);
  }
  next_ = tick + 1;
  type_ = type;
  const double lag = static_cast<double>(tick - refreshed_ + DelayAt(tick, delay));
  Judge(RuleOf(type), tick, value, minimum_samples, lag);

  const std::uint32_t slot = static_cast<std::uint32_t>(tick % kHistory);
  const bool flagged = evidence_[slot] >= 1;
  flagged_run_ = flagged ? flagged_run_ + 1 : 0;
  const bool usable = std::isfinite(value) && (!flagged || flagged_run_ > kReadmitAfter);
  usable_ = usable ? usable_ | (1U << slot) : usable_ & ~(1U << slot);
  AdmitDelayed(tick, delay, flagged);
}

void Series::Judge(const SeriesRule& rule, std::uint64_t tick, float value, std::uint32_t minimum_samples, double lag) {
  const std::uint32_t slot = static_cast<std::uint32_t>(tick % kHistory);
  value_[slot] = value;
  deviation_[slot] = kNan;
  evidence_[slot] = 0;
  if (!std::isfinite(value) || baseline_.count() < minimum_samples) return;
  const double deviation = baseline_.Deviation(static_cast<double>(value), lag);
  const double widened = 1.0 + kYoungFactor / static_cast<double>(baseline_.count());
  const double limit =
      rule.share ? rule.minimum : std::max(rule.minimum, rule.factor * baseline_.sigma(rule.sigma_floor)) * widened;
  threshold_ = static_cast<float>(limit);
  deviation_[slot] = static_cast<float>(deviation);
  evidence_[slot] = rule.only_up && deviation < 0 ? 0.0F : static_cast<float>(std::fabs(deviation) / limit);
}

// A sample enters only if neither it nor the present is flagged: during an incident the baseline stands still.
void Series::AdmitDelayed(std::uint64_t tick, std::uint32_t delay, bool flagged) {
  if (flagged && flagged_run_ <= kReadmitAfter) return;
  const std::uint64_t last = tick - DelayAt(tick, delay);
  const std::uint64_t first = tick == 0 ? 0 : tick - DelayAt(tick - 1, delay);
  for (std::uint64_t entering = first; entering <= last && entering <= tick; ++entering) {
    const std::uint32_t slot = static_cast<std::uint32_t>(entering % kHistory);
    if (((usable_ >> slot) & 1U) != 0) baseline_.Admit(value_[slot]);
  }
}

bool Series::Hot() const {
  if (next_ == 0) return false;
  const std::uint64_t tick = next_ - 1;
  if (static_cast<double>(Evidence(tick)) >= kSingleEvidence) return true;
  int flags = 0;
  for (std::uint64_t back = 0; back < 3 && back <= tick; ++back) flags += Evidence(tick - back) >= 1 ? 1 : 0;
  return flags >= kPersistFlags || SteppedAndStayed();
}

// A gain or a loss that jumps by less than the alarm level and stays there did not wander there.
bool Series::SteppedAndStayed() const {
  const bool gain = type_ == SeriesType::kForwardGain || type_ == SeriesType::kBackwardGain;
  if (!gain && type_ != SeriesType::kLoss) return false;
  // Young nets do make such steps (a tied GPT at step 42).
  if (baseline_.count() < kWindow) return false;
  const double needed = step_level();
  const auto size = [&](std::uint64_t tick) {
    const double deviation = DeviationOrZero(tick);
    return gain ? std::fabs(deviation) : deviation;  // a loss that falls is no fault
  };
  const double newest = DeviationOrZero(next_ - 1);
  const std::uint64_t samples = gain ? kStepSamples : kLossStepSamples;
  for (std::uint64_t back = 1; back <= samples; ++back) {
    if (size(next_ - back) < needed || DeviationOrZero(next_ - back) * newest <= 0) return false;
  }
  for (std::uint64_t back = samples + 1; back <= samples + 2; ++back) {
    if (size(next_ - back) >= kStepBefore * needed) return false;
  }
  return true;
}

double Series::step_level() const {
  if (type_ != SeriesType::kLoss) return kCandidateLevel * threshold();
  return std::max(kLossStepMinimum, kLossStepFactor * baseline_.sigma(kLevelSigmaFloor));
}

std::uint64_t Series::StepTick() const {
  return next_ - (type_ == SeriesType::kLoss ? kLossStepSamples : kStepSamples);
}

}  // namespace neuraldbg
