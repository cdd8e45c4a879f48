#include <algorithm>
#include <array>

#include "daemon/detect/detector.h"

namespace neuraldbg {
namespace {

constexpr std::array<const char*, kRegimeCount> kNames{
    "HEALTHY",     "SHIFTED", "VANISHING",    "EXPLODING", "SATURATED",  "DEAD",    "UPDATE_LARGE", "UPDATE_SMALL",
    "NO_GRADIENT", "FROZEN",  "ACCUMULATING", "RATE_ZERO", "RATE_SPIKE", "STALLED", "NONFINITE"};

// Whether the step says anything about the site, and the value that says it.
bool ObservedValue(const Observation& observation, std::uint32_t site, double& value) {
  const SiteUse use = observation.graph->use(site);
  const auto level = [&](const TensorReading& reading) {
    value = static_cast<double>(std::exp2(reading.level));
    return reading.present;
  };
  switch (use.kind) {
    case SiteUse::Kind::kForward:
      return level(observation.forward[use.index]);
    case SiteUse::Kind::kBackward:
      return level(observation.backward[use.index]);
    case SiteUse::Kind::kBatch:
      return level(observation.batches[use.index]);
    case SiteUse::Kind::kParameter:
      value = static_cast<double>(std::exp2(observation.parameters[use.index].gradient_level));
      return observation.parameters[use.index].present;
    case SiteUse::Kind::kOptimizer:
      value = static_cast<double>(observation.optimizers[use.index].learning_rate);
      return observation.optimizers[use.index].present;
    case SiteUse::Kind::kLoss:
      value = static_cast<double>(observation.loss.value);
      return observation.loss.present;
    case SiteUse::Kind::kStep:
      value = 0;
      return observation.has_step;
    case SiteUse::Kind::kNone:
      break;
  }
  return false;
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
    double value = 0;
    if (!proposed && ObservedValue(observation, site, value) && ++entry.quiet >= kLeaveAfter) {
      out.push_back(Change(observation, site, entry, entry.regime, Regime::kHealthy, value));
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
