// When a series started to deviate: backwards from the alarm while the deviation keeps its sign and a fair part of its
// size.
#pragma once

#include <cstdint>
#include <optional>

#include "shared/series/series.h"

namespace neuraldbg {

struct Onset {
  std::uint64_t tick = 0;  // of the series' clock
  double evidence = 0;     // largest since then, in multiples of the alarm level
};

// Looks for a sample at the candidate level among the three up to `newest` and walks back from there. The conditions on
// sign and size keep noise one step early from being taken for the start.
std::optional<Onset> FindOnset(const Series& series, std::uint64_t newest);

}  // namespace neuraldbg
