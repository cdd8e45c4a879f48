// How likely a leading cause is right: a logistic function of what separated right from wrong answers on the
// development recordings (docs/inference.md says how it was fitted and what it is worth).
#pragma once

#include <span>

#include "daemon/infer/cause.h"

namespace neuraldbg {

// `others`: the causes ranked behind, of the same incident and of others.
double ConfidenceOf(const Cause& cause, std::span<const Cause> others);

}  // namespace neuraldbg
