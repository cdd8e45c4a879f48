// What every detector is and what it may say.
//
// A detector is a plain value with
//   void Observe(const Observation& observation, DetectorOutput& output);   // one call per training step, in order
//   template <typename Archive> void Visit(Archive& archive);               // its whole state, for snapshots
// It gets no clock, no I/O and no threads, so that a replay of the same frames gives the same answers. It keeps state
// by node or parameter of the graph and never by step.
//
// Two things come out. A Finding is exact: the records show a violated rule, whatever the statistics say. A regime is
// what a site is in at this step; RegimeBook turns changes of it into transitions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/detect/observation.h"
#include "daemon/model/diagnosis.h"
#include "shared/series/state_archive.h"

namespace neuraldbg {

struct Finding {
  HypothesisKind kind = HypothesisKind::BLIND_SPOT;
  std::uint32_t site = kNoSite;
  std::string module;
  std::uint64_t step = 0, detected = 0;
  Phase phase = Phase::kForward;
  std::int32_t order = 0;  // within (step, phase): position in the pass, earlier first
  bool weak = false;       // an exact observation with more than one possible reason: sorts with the statistics
  bool uncertain = false;  // the step did not observe what would tell this from its neighbours: never more than UNSURE
  double score = 50;       // how far out, comparable with the evidence of statistical candidates
  Statistic statistic = Statistic::kNone;
  double observed = 0, expected_low = 0, expected_high = 0;
  std::string note;  // one sentence for people
  std::vector<std::string> equivalents;

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, kind, site, module, step, detected, phase, order, weak, uncertain, score, statistic, observed,
           expected_low, expected_high, note, equivalents);
  }
};

// Order is priority: a site that is several things at once is the last of them.
enum class Regime : std::uint8_t {
  kHealthy,
  kShifted,
  kVanishing,
  kExploding,
  kSaturated,
  kDead,
  kUpdateLarge,
  kUpdateSmall,
  kNoGradient,
  kFrozen,
  kAccumulating,
  kRateZero,
  kRateSpike,
  kStalled,
  kNonfinite,
};
inline constexpr std::uint8_t kRegimeCount = 15;
const char* RegimeName(Regime regime);

// The current regime of every site. Entering is reported at once, leaving after three observations without it, so that
// a value on the edge does not flicker.
class RegimeBook {
 public:
  // The site is in `regime` at this step. Of several proposals for a site the one of highest priority counts.
  void Propose(std::uint32_t site, Phase phase, Regime regime, Statistic statistic, double value, double low,
               double high);
  // The site was observed at this step; without a proposal that is one observation towards healthy.
  void Settle(const Observation& observation, std::uint32_t rank, std::uint32_t incarnation,
              std::vector<Transition>& out);
  void Grow(const GraphGrowth& growth) { entries_.resize(growth.site_count); }
  bool Fits(std::size_t sites) const;

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, entries_, unhealthy_);
  }

 private:
  static constexpr std::uint8_t kLeaveAfter = 3;
  struct Entry {
    Regime regime = Regime::kHealthy;
    std::uint8_t quiet = 0;
    Phase phase = Phase::kForward;
    Statistic statistic = Statistic::kNone;
    float low = 0, high = 0;
    template <typename Archive>
    void Visit(Archive& archive) {
      Fields(archive, regime, quiet, phase, statistic, low, high);
    }
  };
  struct Proposal {
    std::uint32_t site = kNoSite;
    Phase phase = Phase::kForward;
    Regime regime = Regime::kHealthy;
    Statistic statistic = Statistic::kNone;
    double value = 0, low = 0, high = 0;
  };
  Transition Change(const Observation& observation, std::uint32_t site, const Entry& entry, Regime from, Regime to,
                    double value) const;
  void Enter(const Observation& observation, std::uint32_t rank, std::uint32_t incarnation,
             std::vector<Transition>& out);

  std::vector<Entry> entries_;            // by site
  std::vector<std::uint32_t> unhealthy_;  // ascending
  std::vector<Proposal> proposals_;       // of this step only
};

struct DetectorOutput {
  RegimeBook& regimes;
  std::vector<Finding>& findings;
};

}  // namespace neuraldbg
