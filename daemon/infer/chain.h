// The way from a cause to what the user sees: links of site, step and share of the change.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/infer/cause.h"
#include "daemon/infer/suspects.h"

namespace neuraldbg {

// Exact non-finite findings: from the producer along non-finite consumers to the loss. Empty for other kinds.
std::vector<Link> NonfiniteChain(const RankDetectors& detectors, const Finding& finding);

// Statistical causes: the change of the symptom at the onset step, split exactly over the mechanisms. Also sets the
// causes' shares.
void SplitOverCauses(const RankDetectors& detectors, std::vector<Cause>& causes);

}  // namespace neuraldbg
