// Statistics -> payloads of records. Pure functions: they decide which fields hold a value (validity bits), saturate
// counts at 2^32 - 1 and never touch the head of the record, which rank_session.cc fills.
#pragma once

#include "agent/src/tensor_statistics.h"
#include "shared/record.h"

namespace neuraldbg {

// TENSOR and BATCH.
void PackTensor(const TensorStatistics& statistics, Record& record) noexcept;

// What is known about one parameter around one optimizer step.
struct ParameterStatistics {
  Accumulator value;
  bool has_gradient = false;
  Accumulator gradient;
  bool has_update = false;
  bool has_dot = false;
  UpdateAccumulator update;
};
void PackParameter(const ParameterStatistics& statistics, Record& record) noexcept;

std::uint32_t SaturateCount(std::uint64_t count) noexcept;
float NarrowMaximum(double max_abs) noexcept;  // rounds to float32, and stays finite

}  // namespace neuraldbg
