// Sentences for people.
#pragma once

#include <string>
#include <vector>

#include "daemon/infer/cause.h"
#include "daemon/model/sample.h"

namespace neuraldbg {

std::string SummaryOf(const Cause& cause, const Topology& topology);
// What the loss did while the incident lasted.
std::string LossText(const LossEffect& loss);
// What to do first.
const char* RemedyFor(const Cause& cause);
// Kinds that the records cannot tell from this one.
std::vector<std::string> EquivalentsOf(const Cause& cause);

}  // namespace neuraldbg
