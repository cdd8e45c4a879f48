// From the causes of all ranks to the one answer that people get.
#pragma once

#include <map>

#include "daemon/infer/rank_inference.h"

namespace neuraldbg {

Diagnosis Assemble(const std::map<std::uint32_t, RankInference>& ranks);

}  // namespace neuraldbg
