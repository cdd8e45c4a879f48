// From suspects to causes: a node takes the blame only for what its inputs cannot account for, and changes that another
// pass of the step explains are put where they came from (weight update -> forward gain, forward gain -> backward
// gain).
#pragma once

#include <vector>

#include "daemon/infer/cause.h"
#include "daemon/infer/suspects.h"

namespace neuraldbg {

// Causes at the newest step of `detectors`, the best first. If no node changed of its own accord, one cause is left,
// marked as fallback.
std::vector<Cause> FindCauses(const RankDetectors& detectors, std::uint64_t alarm_step);

// Whether the parameters of the node account for the pending forward change of a cause; moves the cause to the update
// if so. Called when parameters were observed. Returns true if the cause changed.
bool ResolvePending(const RankDetectors& detectors, Cause& cause);

}  // namespace neuraldbg
