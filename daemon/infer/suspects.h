// Who deviated when an alarm was raised: every node and series at the candidate level, with its own onset. Nothing is
// judged here; candidates.h does.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/detect/rank_detectors.h"

namespace neuraldbg {

enum class Side : std::uint8_t { kBatch, kForward, kLoss, kBackward, kUpdate };

struct Suspect {
  Side side = Side::kForward;
  std::uint32_t index = 0;  // batch site, node or parameter, by side
  std::uint64_t step = 0;   // onset
  std::uint64_t tick = 0;   // onset on the side's own clock
  double evidence = 0;
};

Phase PhaseOf(Side side);
// Position in the pass: backward passes run against the order of nodes.
std::int32_t OrderOf(Side side, std::uint32_t index);

// Ordered by (step, phase, position).
std::vector<Suspect> FindSuspects(const RankDetectors& detectors, std::uint64_t alarm_step);

}  // namespace neuraldbg
