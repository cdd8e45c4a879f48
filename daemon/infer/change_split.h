// The exact split of a node's change of level over the mechanisms that it was computed by (logarithmic mean Divisia
// index): one sweep against the pass, O(edges). The contributions sum to the change.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/infer/suspects.h"

namespace neuraldbg {

struct ChangeSplit {
  double total = 0;                  // change of the symptom, log2
  std::vector<double> contribution;  // by node, of its own mechanism
  double batch = 0;                  // of the float inputs of the model
};

// `backward`: the symptom is the gradient at `node`. Reference is each series' baseline.
ChangeSplit SplitChange(const RankDetectors& detectors, bool backward, std::uint32_t node, std::uint64_t tick);

}  // namespace neuraldbg
