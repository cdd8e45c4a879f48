// What a LOSS record says: the value of the loss, the labels it was computed from, and the scale of the logits.
//
// Pure functions; bounded cost: of the logits at most kMaxLogitElements are read, evenly over the rows, because an
// exponential per logit would cost more than every other statistic of the step together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "agent/src/tensor_layout.h"
#include "shared/record.h"

namespace neuraldbg {

inline constexpr std::size_t kMaxLogitElements = 16384;  // about 0.1 ms

struct LossInput {
  TensorView value;                     // any shape; elements are summed
  const TensorView* logits = nullptr;   // null when unknown
  const TensorView* targets = nullptr;  // class indices (integers) or values (floating)
  std::int64_t ignore_index = 0;
  LossKind kind = LossKind::kUnknown;
  Reduction reduction = Reduction::kUnknown;
};

// Fills kind, dtype, payload and validity. False when the value itself cannot be read.
bool PackLoss(const LossInput& input, Record& record) noexcept;

}  // namespace neuraldbg
