#include "agent/src/loss_statistics.h"

#include <cmath>
#include <cstring>

#include "agent/src/tensor_statistics.h"

namespace neuraldbg {
namespace {

float FloatOfHalf(std::uint16_t half) noexcept {
  const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
  const int exponent = half >> 10 & 0x1f;
  const int mantissa = half & 0x3ff;
  if (exponent == 0x1f) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
}

template <typename T>
T Load(const void* data, std::int64_t offset) noexcept {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + offset * static_cast<std::int64_t>(sizeof(T)), sizeof value);
  return value;
}

double ReadReal(const TensorView& view, std::int64_t offset) noexcept {
  switch (view.dtype) {
    case DType::kFloat32:
      return static_cast<double>(Load<float>(view.data, offset));
    case DType::kFloat64:
      return Load<double>(view.data, offset);
    case DType::kFloat16:
      return static_cast<double>(FloatOfHalf(Load<std::uint16_t>(view.data, offset)));
    default: {
      const std::uint32_t bits = static_cast<std::uint32_t>(Load<std::uint16_t>(view.data, offset)) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return static_cast<double>(value);
    }
  }
}

std::int64_t ReadInteger(const TensorView& view, std::int64_t offset) noexcept {
  switch (view.dtype) {
    case DType::kInt64:
      return Load<std::int64_t>(view.data, offset);
    case DType::kInt32:
      return Load<std::int32_t>(view.data, offset);
    case DType::kInt16:
      return Load<std::int16_t>(view.data, offset);
    case DType::kInt8:
      return Load<std::int8_t>(view.data, offset);
    default:
      return Load<std::uint8_t>(view.data, offset);
  }
}

void AddIntegerLabels(const LossInput& input, LossPayload& payload) noexcept {
  const TensorView& targets = *input.targets;
  const MemoryWalk walk = MakeMemoryWalk(targets);
  ForEachRun(walk, [&](std::int64_t offset) {
    for (std::int64_t i = 0; i < walk.inner_size(); ++i) {
      const std::int64_t label = ReadInteger(targets, offset + i * walk.inner_stride());
      if (label == input.ignore_index) {
        ++payload.label_ignored;
        continue;
      }
      const auto x = static_cast<double>(label);
      ++payload.label_count;
      payload.label_sum += x;
      payload.label_sum_squares += x * x;
    }
    return true;
  });
}

bool AddLabels(const LossInput& input, LossPayload& payload) noexcept {
  const TensorView& targets = *input.targets;
  if (targets.dimensions > kMaxTensorDimensions || ElementBytes(targets.dtype) == 0) return false;
  if (!IsFloating(targets.dtype)) {
    if (targets.numel != 0) AddIntegerLabels(input, payload);
    return true;
  }
  TensorStatistics statistics;
  if (!ComputeStatistics(targets, {}, statistics)) return false;
  payload.label_count = statistics.total.count;
  payload.label_sum = statistics.total.sum;
  payload.label_sum_squares = statistics.total.sum_squares;
  return true;
}

// Class indices have the logits' sizes without the class dimension, which is dimension 1 by torch's convention;
// language models often keep it last. Class probabilities have the same sizes as the logits.
int ClassDimension(const TensorView& logits, const TensorView* targets) noexcept {
  if (logits.dimensions == 0) return -1;
  const int conventional = logits.dimensions == 1 ? 0 : 1;
  if (targets == nullptr || targets->dimensions != logits.dimensions - 1) return conventional;
  const auto fits = [&](int left_out) {
    for (int d = 0, t = 0; d < logits.dimensions; ++d) {
      if (d != left_out && logits.sizes[d] != targets->sizes[t++]) return false;
    }
    return true;
  };
  if (fits(conventional)) return conventional;
  return fits(logits.dimensions - 1) ? logits.dimensions - 1 : -1;
}

// Offset of the n-th row in logical order: rows are all index tuples without the class dimension.
std::int64_t RowOffset(const TensorView& logits, int class_dimension, std::uint64_t row) noexcept {
  std::int64_t offset = 0;
  for (int d = logits.dimensions - 1; d >= 0; --d) {
    if (d == class_dimension) continue;
    const auto size = static_cast<std::uint64_t>(logits.sizes[d]);
    offset += static_cast<std::int64_t>(row % size) * logits.strides[d];
    row /= size;
  }
  return offset;
}

double LogSumExp(const TensorView& logits, std::int64_t first, std::int64_t stride, std::int64_t classes) noexcept {
  double largest = -INFINITY;
  for (std::int64_t c = 0; c < classes; ++c) {
    const double x = ReadReal(logits, first + c * stride);
    if (std::isnan(x)) return x;
    if (x > largest) largest = x;
  }
  if (!std::isfinite(largest)) return largest;
  double sum = 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    sum += static_cast<double>(std::exp(static_cast<float>(ReadReal(logits, first + c * stride) - largest)));
  }
  return largest + std::log(sum);
}

// False when no row has a finite value.
bool AddLogits(const TensorView& logits, int class_dimension, LossPayload& payload) noexcept {
  const std::int64_t classes = logits.sizes[class_dimension];
  const std::uint64_t rows = logits.numel / static_cast<std::uint64_t>(classes);
  std::uint64_t taken = kMaxLogitElements / static_cast<std::uint64_t>(classes);
  taken = taken < 1 ? 1 : (taken < rows ? taken : rows);
  double sum = 0;
  std::uint64_t finite = 0;
  for (std::uint64_t i = 0; i < taken; ++i) {
    const std::int64_t first = RowOffset(logits, class_dimension, i * rows / taken);
    const double value = LogSumExp(logits, first, logits.strides[class_dimension], classes);
    if (!std::isfinite(value)) continue;
    sum += value;
    ++finite;
  }
  if (finite == 0) return false;
  payload.logsumexp_mean = sum / static_cast<double>(finite);
  return true;
}

bool HasClasses(const LossInput& input) noexcept {
  return input.kind == LossKind::kCrossEntropy ||
         (input.kind == LossKind::kUnknown && input.targets != nullptr && !IsFloating(input.targets->dtype));
}

}  // namespace

bool PackLoss(const LossInput& input, Record& record) noexcept {
  TensorStatistics value;
  if (!IsFloating(input.value.dtype) || input.value.numel == 0) return false;
  if (!ComputeStatistics(input.value, {}, value)) return false;
  record.kind = RecordKind::kLoss;
  record.dtype = input.value.dtype;
  LossPayload& payload = record.loss;
  payload = LossPayload{};
  const Accumulator& total = value.total;
  payload.nonfinite = total.nan_count + total.inf_count != 0 ? 1 : 0;
  payload.value = total.sum;
  if (payload.nonfinite != 0) {
    // One scalar keeps its sign of infinity; of several elements the worst one speaks.
    payload.value = total.nan_count != 0 ? std::nan("") : (total.count == 1 ? ReadReal(input.value, 0) : INFINITY);
  }
  payload.loss_kind = input.kind;
  payload.reduction = input.reduction;
  std::uint32_t validity = ValidityBit(0) | ValidityBit(7) | ValidityBit(8) | ValidityBit(10);
  if (input.targets != nullptr && AddLabels(input, payload)) {
    validity |= ValidityBit(1) | ValidityBit(2) | ValidityBit(3) | ValidityBit(4);
  }
  const bool readable = input.logits != nullptr && input.logits->numel != 0 && IsFloating(input.logits->dtype) &&
                        input.logits->dimensions <= kMaxTensorDimensions;
  if (readable && HasClasses(input)) {
    const int class_dimension = ClassDimension(*input.logits, input.targets);
    if (class_dimension >= 0) {
      payload.class_count = static_cast<std::uint32_t>(input.logits->sizes[class_dimension]);
      validity |= ValidityBit(9);
      if (AddLogits(*input.logits, class_dimension, payload)) validity |= ValidityBit(6);
    }
  }
  record.validity = validity;
  return true;
}

}  // namespace neuraldbg
