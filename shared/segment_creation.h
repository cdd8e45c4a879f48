// Makes a segment file: nothing of it is visible under its final name before it is complete, owned and locked.
#pragma once

#include <cstdint>
#include <string>

#include "shared/result.h"
#include "shared/ring_writer.h"
#include "shared/writer_registry.h"

namespace neuraldbg {

// Fills `state` (which must be registered already, so that a sweep in this process leaves the temporary file alone) and
// `path`. On failure no file remains. May throw std::bad_alloc.
Error CreateSegmentFile(const SegmentOptions& options, WriterState& state, std::string& path);

std::uint64_t MonotonicNanoseconds() noexcept;

}  // namespace neuraldbg
