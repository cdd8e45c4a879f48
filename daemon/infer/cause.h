// A possible cause, exact or statistical, in the one form in which they are ordered against each other; and the
// incidents that statistical ones are grouped in.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "daemon/detect/detector.h"
#include "daemon/model/diagnosis.h"
#include "shared/series/state_archive.h"

namespace neuraldbg {

struct Link {
  std::uint32_t site = kNoSite;
  std::uint64_t step = 0;
  Phase phase = Phase::kForward;
  double share = 0;
  std::string note;
  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, site, step, phase, share, note);
  }
};

struct Cause {
  Finding finding;
  bool exact = false;
  bool explained = false;  // a large update that a large gradient accounts for: sorts behind
  bool faint = false;      // below the alarm level and dwarfed by another: sorts behind
  bool fallback = false;   // nothing seen changed of its own accord; the earliest deviation stands in: UNSURE
  bool drift = false;      // moved step by step, with no jump anywhere, as learning moves it
  double excess = 0;       // own change minus change of the inputs, log2
  double share = 0;        // of the symptom at the onset step, where it was split
  // A forward change of a module whose weight was not observed in time: decided when its parameter comes round.
  std::uint32_t pending_node = kNoSite;
  std::uint64_t pending_until = 0;
  double own_change = 0;
  std::vector<Link> chain;

  bool strong() const { return exact && !finding.weak && !finding.uncertain; }
  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, finding, exact, explained, faint, fallback, drift, excess, share, pending_node, pending_until,
           own_change, chain);
  }
};

// (step, phase, position in the pass): which of two causes comes first.
inline bool Earlier(const Cause& a, const Cause& b) {
  const auto key = [](const Finding& f) { return std::tuple(f.step, static_cast<int>(f.phase), f.order); };
  return key(a.finding) < key(b.finding);
}

// What the loss did while an incident was open: the step where it lay highest above its own baseline.
struct LossEffect {
  bool known = false;
  std::uint64_t step = 0;
  double evidence = 0;  // in multiples of the alarm level
  double value = 0, expected_low = 0, expected_high = 0;
  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, known, step, evidence, value, expected_low, expected_high);
  }
};

// From the first alarm to eight quiet steps. Causes are ordered, the best first.
struct Incident {
  std::uint64_t alarm_step = 0, last_hot_step = 0;
  std::uint32_t rank = 0;
  bool open = true;
  std::uint32_t quiet = 0;
  std::uint32_t hot_steps = 1;  // steps in alarm
  std::vector<Cause> causes;
  LossEffect loss;
  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, alarm_step, last_hot_step, rank, open, quiet, hot_steps, causes, loss);
  }
};

}  // namespace neuraldbg
