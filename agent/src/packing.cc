#include "agent/src/packing.h"

#include <bit>
#include <limits>

namespace neuraldbg {

std::uint32_t SaturateCount(std::uint64_t count) noexcept {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(count < kMost ? count : kMost);
}

float NarrowMaximum(double max_abs) noexcept {
  constexpr double kMost = std::numeric_limits<float>::max();
  // A training may have told the processor to flush subnormal floats, a conversion included; so those are made by hand.
  if (max_abs < static_cast<double>(std::numeric_limits<float>::min())) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(max_abs * 0x1p149 + 0.5));
  }
  return static_cast<float>(max_abs < kMost ? max_abs : kMost);
}

void PackTensor(const TensorStatistics& statistics, Record& record) noexcept {
  const Accumulator& total = statistics.total;
  TensorPayload& payload = record.tensor;
  payload = TensorPayload{};
  payload.numel = total.count;
  payload.zero_count = SaturateCount(total.zero_count);
  payload.sum = total.sum;
  payload.sum_abs = total.sum_abs;
  payload.sum_squares = total.sum_squares;
  payload.max_abs = NarrowMaximum(total.max_abs);
  payload.bits = total.bits;
  // An integer cannot be NaN, infinite or too small: these counts would be zeros that nobody measured.
  std::uint32_t validity = ValidityBit(0) | ValidityBit(3) | ValidityBit(7) | ValidityBit(8) | ValidityBit(9) |
                           ValidityBit(10) | ValidityBit(12);
  if (statistics.is_floating) {
    payload.nan_count = SaturateCount(total.nan_count);
    payload.inf_count = SaturateCount(total.inf_count);
    payload.tiny_count = SaturateCount(total.tiny_count);
    validity |= ValidityBit(1) | ValidityBit(2) | ValidityBit(5);
  }
  if (statistics.has_saturation) {
    payload.saturated_count = SaturateCount(total.saturated_count);
    validity |= ValidityBit(4);
  }
  if (statistics.has_units) {
    payload.dead_units = statistics.dead_units;
    payload.units = statistics.units;
    validity |= ValidityBit(6) | ValidityBit(11);
  }
  record.validity = validity;
}

void PackParameter(const ParameterStatistics& statistics, Record& record) noexcept {
  ParameterPayload& payload = record.parameter;
  payload = ParameterPayload{};
  const Accumulator& value = statistics.value;
  payload.numel = value.count;
  payload.bits = value.bits;
  payload.value_sum = value.sum;
  payload.value_sum_squares = value.sum_squares;
  payload.value_max_abs = NarrowMaximum(value.max_abs);
  payload.value_nonfinite = SaturateCount(value.nan_count + value.inf_count);
  std::uint32_t validity =
      ValidityBit(0) | ValidityBit(1) | ValidityBit(2) | ValidityBit(3) | ValidityBit(7) | ValidityBit(9);
  if (statistics.has_gradient) {
    const Accumulator& gradient = statistics.gradient;
    payload.gradient_sum_squares = gradient.sum_squares;
    payload.gradient_max_abs = NarrowMaximum(gradient.max_abs);
    payload.gradient_nonfinite = SaturateCount(gradient.nan_count + gradient.inf_count);
    payload.gradient_zero = SaturateCount(gradient.zero_count);
    validity |= ValidityBit(4) | ValidityBit(8) | ValidityBit(10) | ValidityBit(11);
  }
  if (statistics.has_update) {
    payload.update_sum_squares = statistics.update.update_sum_squares;
    payload.changed = statistics.update.differing_bits != 0 ? 1 : 0;
    validity |= ValidityBit(5) | ValidityBit(12);
    if (statistics.has_dot) {
      payload.gradient_dot_update = statistics.update.gradient_dot_update;
      validity |= ValidityBit(6);
    }
  }
  record.validity = validity;
}

}  // namespace neuraldbg
