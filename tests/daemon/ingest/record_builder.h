// Records as the agent would push them, for tests of ingest.
#pragma once

#include <cstdint>

#include "shared/record.h"

namespace neuraldbg {

inline constexpr std::uint32_t kAllFields = 0xfffff;
inline constexpr std::uint16_t kTrainingPass = kFlagTraining | kFlagGradMode;

inline Record MakeRecord(RecordKind kind, Phase phase, std::uint64_t step, std::uint32_t site, std::uint16_t flags) {
  Record record{};
  record.kind = kind;
  record.phase = phase;
  record.step = step;
  record.site = site;
  record.flags = flags;
  record.validity = kAllFields;
  record.time_ns = 1000 * step + site;
  return record;
}

// `numel` elements of value `value`.
inline Record TensorRecord(std::uint64_t step, std::uint32_t site, double value, std::uint64_t numel = 10,
                           std::uint16_t flags = kTrainingPass, Phase phase = Phase::kForward) {
  Record record = MakeRecord(RecordKind::kTensor, phase, step, site, flags);
  const auto n = static_cast<double>(numel);
  record.tensor.numel = numel;
  record.tensor.sum = value * n;
  record.tensor.sum_abs = (value < 0 ? -value : value) * n;
  record.tensor.sum_squares = value * value * n;
  record.tensor.max_abs = static_cast<float>(value < 0 ? -value : value);
  record.tensor.units = 4;
  record.tensor.bits = 3;
  return record;
}

inline Record StepRecord(std::uint64_t step, std::uint32_t site, std::uint64_t attempts, std::uint64_t dropped = 0) {
  Record record = MakeRecord(RecordKind::kStep, Phase::kSystem, step, site, kFlagStepApplied);
  record.step_end.attempts_total = attempts;
  record.step_end.dropped_total = dropped;
  record.step_end.samples = 32;
  return record;
}

}  // namespace neuraldbg
