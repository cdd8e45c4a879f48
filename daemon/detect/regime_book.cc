#include <algorithm>
#include <array>

#include "daemon/detect/detector.h"

namespace neuraldbg {
namespace {

constexpr std::array<const char*, kRegimeCount> kNames{
    "HEALTHY",     "SHIFTED", "VANISHING",    "EXPLODING", "SATURATED",  "DEAD",    "UPDATE_LARGE", "UPDATE_SMALL",
    "NO_GRADIENT", "FROZEN",  "ACCUMULATING", "RATE_ZERO", "RATE_SPIKE", "STALLED", "NONFINITE"};

// What a step says about a site: that it was observed, and the statistic with which the site entered its regime.
struct Observed {
  bool any = false;
  double value = 0;
};

Observed OfTensor(const TensorReading& reading, Statistic statistic) {
  switch (statistic) {
    case Statistic::kNan:
      return {reading.present, static_cast<double>(reading.nonfinite)};
    case Statistic::kZero:
      return {reading.present, static_cast<double>(reading.zero_share)};
    case Statistic::kDeadUnits:
      return {reading.present, static_cast<double>(reading.dead_share)};
    case Statistic::kSaturated:
      return {reading.present, static_cast<double>(reading.saturated_share)};
    default:
      return {reading.present, static_cast<double>(std::exp2(reading.level))};
  }
}

Observed OfParameter(const ParameterReading& reading, Statistic statistic) {
  switch (statistic) {
    case Statistic::kValueNonfinite:
      return {reading.present, static_cast<double>(reading.value_nonfinite)};
    case Statistic::kChanged:
      return {reading.present, reading.changed ? 1.0 : 0.0};
    case Statistic::kUpdateRms:
      return {reading.present, static_cast<double>(std::exp2(reading.update_level))};
    default:
      return {reading.present, static_cast<double>(std::exp2(reading.gradient_level))};
  }
}

Observed Observe(const Observation& observation, std::uint32_t site, Statistic statistic) {
  const SiteUse use = observation.graph->use(site);
  switch (use.kind) {
    case SiteUse::Kind::kForward:
      return OfTensor(observation.forward[use.index], statistic);
    case SiteUse::Kind::kBackward:
      return OfTensor(observation.backward[use.index], statistic);
    case SiteUse::Kind::kBatch:
      return OfTensor(observation.batches[use.index], statistic);
    case SiteUse::Kind::kParameter:
      return OfParameter(observation.parameters[use.index], statistic);
    case SiteUse::Kind::kOptimizer:
      return {observation.optimizers[use.index].present,
              static_cast<double>(observation.optimizers[use.index].learning_rate)};
    case SiteUse::Kind::kLoss: {
      const LossReading& loss = observation.loss;
      if (statistic == Statistic::kNonfinite) return {loss.present, loss.finite ? 0.0 : 1.0};
      return {loss.present, static_cast<double>(loss.value)};
    }
    case SiteUse::Kind::kStep:
      return {observation.has_step, 0};
    case SiteUse::Kind::kNone:
      break;
  }
  return {};
}

}  // namespace

const char* RegimeName(Regime regime) { return kNames[static_cast<std::size_t>(regime)]; }

void RegimeBook::Propose(std::uint32_t site, Phase phase, Regime regime, Statistic statistic, double value, double low,
                         double high) {
  if (site >= entries_.size()) return;
  proposals_.push_back({site, phase, regime, statistic, value, low, high});
}

bool RegimeBook::Fits(std::size_t sites) const {
  if (entries_.size() != sites || !std::is_sorted(unhealthy_.begin(), unhealthy_.end())) return false;
  const bool known = std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return static_cast<std::uint8_t>(entry.regime) < kRegimeCount;
  });
  return known && (unhealthy_.empty() || unhealthy_.back() < sites);
}

Transition RegimeBook::Change(const Observation& observation, std::uint32_t site, const Entry& entry, Regime from,
                              Regime to, double value) const {
  Transition transition;
  transition.step = observation.step;
  transition.site = site;
  transition.phase = entry.phase;
  transition.statistic = entry.statistic;
  transition.from = RegimeName(from);
  transition.to = RegimeName(to);
  transition.value = value;
  transition.expected_low = static_cast<double>(entry.low);
  transition.expected_high = static_cast<double>(entry.high);
  transition.severity = to == Regime::kHealthy     ? Severity::kInfo
                        : to == Regime::kNonfinite ? Severity::kError
                                                   : Severity::kWarning;
  return transition;
}

void RegimeBook::Enter(const Observation& observation, std::uint32_t rank, std::uint32_t incarnation,
                       std::vector<Transition>& out) {
  for (const Proposal& proposal : proposals_) {
    Entry& entry = entries_[proposal.site];
    entry.quiet = 0;
    if (entry.regime == proposal.regime) continue;
    const Regime from = entry.regime;
    entry = {proposal.regime,
             0,
             proposal.phase,
             proposal.statistic,
             static_cast<float>(proposal.low),
             static_cast<float>(proposal.high)};
    out.push_back(Change(observation, proposal.site, entry, from, proposal.regime, proposal.value));
    out.back().rank = rank;
    out.back().incarnation = incarnation;
    if (from == Regime::kHealthy) {
      unhealthy_.insert(std::lower_bound(unhealthy_.begin(), unhealthy_.end(), proposal.site), proposal.site);
    }
  }
}

void RegimeBook::Settle(const Observation& observation, std::uint32_t rank, std::uint32_t incarnation,
                        std::vector<Transition>& out) {
  // Strongest proposal of a site first, then only that one is kept.
  std::stable_sort(proposals_.begin(), proposals_.end(), [](const Proposal& a, const Proposal& b) {
    return a.site != b.site ? a.site < b.site : a.regime > b.regime;
  });
  proposals_.erase(std::unique(proposals_.begin(), proposals_.end(),
                               [](const Proposal& a, const Proposal& b) { return a.site == b.site; }),
                   proposals_.end());
  Enter(observation, rank, incarnation, out);

  std::vector<std::uint32_t> still;
  auto proposal = proposals_.begin();
  for (const std::uint32_t site : unhealthy_) {
    while (proposal != proposals_.end() && proposal->site < site) ++proposal;
    Entry& entry = entries_[site];
    const bool proposed = proposal != proposals_.end() && proposal->site == site;
    const Observed observed = proposed ? Observed{} : Observe(observation, site, entry.statistic);
    if (observed.any && ++entry.quiet >= kLeaveAfter) {
      out.push_back(Change(observation, site, entry, entry.regime, Regime::kHealthy, observed.value));
      out.back().rank = rank;
      out.back().incarnation = incarnation;
      entry = Entry{};
    } else {
      still.push_back(site);
    }
  }
  unhealthy_ = std::move(still);
  proposals_.clear();
}

}  // namespace neuraldbg
