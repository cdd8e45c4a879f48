// How large the segment of a session is made: lanes follow the records of a step, the tables follow the sites.
#pragma once

#include <cstdint>

#include "shared/ring_writer.h"

namespace neuraldbg {

// What is known of the model when the segment is made, before anything has run. 0: unknown.
struct ExpectedLoad {
  std::uint32_t records_per_step = 0;
  std::uint32_t sites = 0;
};

// `options` with lane capacity, per-site counters and manifest raised to what the load asks for; never lowered, and
// never beyond what a reader accepts. docs/ring-format.md, "Memory per rank", has the rule.
SegmentOptions SizedFor(SegmentOptions options, const ExpectedLoad& load) noexcept;

}  // namespace neuraldbg
