// All operators of the agent on one page (torch.ops.neuraldbg), against LibTorch's stable ABI.
//
// No schema declares a mutation, although every call writes a record. A declared mutation needs a tensor to mutate;
// autograd would keep versions of it, and backward graphs would fail or run twice (docs/decisions). What keeps the
// calls alive and in order inside a compiled graph is the ORDERED effect, which the Python package registers for the
// traceable ones (observe, batch): there is no C++ call for it. The others are called outside of graphs only.
//
// The kernels are registered for every backend, because an operator without a kernel raises into the training. They
// look at the tensor themselves and skip, counted, what they cannot read on the host: other devices, sparse and
// quantized layouts, complex and exotic element types. The Meta kernels are what tracing calls: they do nothing.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>
#include <cstdint>
#include <optional>

#include "agent/src/loss_statistics.h"
#include "agent/src/rank_session.h"
#include "agent/src/session_table.h"
#include "agent/src/torch_tensor.h"
#include "shared/segment_creation.h"

namespace neuraldbg {
namespace {

using torch::stable::Tensor;

// TORCH_BOX does not take noexcept functions; nothing that the operators below call throws all the same.

// Adds the time of one operator call to the session's account.
class AgentTime {
 public:
  explicit AgentTime(RankSession& session) noexcept : session_(session), start_(MonotonicNanoseconds()) {}
  ~AgentTime() { session_.AddAgentTime(MonotonicNanoseconds() - start_); }
  AgentTime(const AgentTime&) = delete;
  AgentTime& operator=(const AgentTime&) = delete;

 private:
  RankSession& session_;
  std::uint64_t start_;
};

void ObserveAs(RecordKind kind, RankSession& session, const Tensor& x, std::int64_t slot, bool requires_grad) noexcept {
  const AgentTime time(session);
  TensorView view;
  if (!ViewOf(x, view)) return session.SkipTensor();
  std::uint16_t flags = 0;
  if (requires_grad) flags |= kFlagRequiresGrad;
  if (InBackward()) flags |= kFlagRecompute;
  session.ObserveTensor(SiteOf(slot), view, kind, flags);
}

void Observe(const Tensor& x, const Tensor& slot_tensor, bool requires_grad) {
  const std::int64_t slot = ReadSlot(slot_tensor);
  const SessionUse session(HandleOf(slot));
  if (session && session->armed()) ObserveAs(RecordKind::kTensor, *session, x, slot, requires_grad);
}

void Batch(const Tensor& x, const Tensor& slot_tensor) {
  const std::int64_t slot = ReadSlot(slot_tensor);
  const SessionUse session(HandleOf(slot));
  if (session) ObserveAs(RecordKind::kBatch, *session, x, slot, false);
}

void Loss(const Tensor& value, std::optional<Tensor> logits, std::optional<Tensor> targets, std::int64_t ignore_index,
          std::int64_t kind, std::int64_t reduction, const Tensor& slot_tensor) {
  const std::int64_t slot = ReadSlot(slot_tensor);
  const SessionUse session(HandleOf(slot));
  if (!session) return;
  const AgentTime time(*session);
  LossInput input;
  TensorView logits_view, targets_view;
  if (!ViewOf(value, input.value)) return session->SkipTensor();
  if (logits.has_value() && ViewOf(*logits, logits_view)) input.logits = &logits_view;
  if (targets.has_value() && ViewOf(*targets, targets_view)) input.targets = &targets_view;
  input.ignore_index = ignore_index;
  if (kind >= 0 && kind <= static_cast<std::int64_t>(LossKind::kOther)) input.kind = static_cast<LossKind>(kind);
  if (reduction >= 0 && reduction <= static_cast<std::int64_t>(Reduction::kNone)) {
    input.reduction = static_cast<Reduction>(reduction);
  }
  session->ObserveLoss(SiteOf(slot), input, InBackward());
}

void ParameterInit(const Tensor& value, const Tensor& slot_tensor) {
  const std::int64_t slot = ReadSlot(slot_tensor);
  const SessionUse session(HandleOf(slot));
  if (!session) return;
  TensorView view;
  if (!ViewOf(value, view)) return session->SkipTensor();
  session->ParameterInit(SiteOf(slot), view);
}

void ParameterBefore(const Tensor& value, std::optional<Tensor> grad, const Tensor& slot_tensor) {
  const std::int64_t slot = ReadSlot(slot_tensor);
  const SessionUse session(HandleOf(slot));
  if (!session) return;
  const AgentTime time(*session);
  TensorView view, grad_view;
  if (!ViewOf(value, view)) return session->SkipTensor();
  const bool readable = grad.has_value() && ViewOf(*grad, grad_view);
  if (grad.has_value() && !readable) session->SkipTensor();
  session->ParameterBefore(SiteOf(slot), view, readable ? &grad_view : nullptr, grad.has_value());
}

void ParameterAfter(const Tensor& value, const Tensor& slot_tensor) {
  const std::int64_t slot = ReadSlot(slot_tensor);
  const SessionUse session(HandleOf(slot));
  if (!session) return;
  const AgentTime time(*session);
  TensorView view;
  if (!ViewOf(value, view)) return session->SkipTensor();
  session->ParameterAfter(SiteOf(slot), view);
}

// The 2-norm; NaN or infinity if an element is; -1 for a tensor that cannot be read.
double GradientNorm(const Tensor& grad) {
  TensorView view;
  TensorStatistics statistics;
  if (!ViewOf(grad, view) || !ComputeStatistics(view, {}, statistics)) return -1.0;
  if (statistics.total.nan_count != 0) return std::nan("");
  if (statistics.total.inf_count != 0) return HUGE_VAL;
  return std::sqrt(statistics.total.sum_squares);
}

void SkipOne(const Tensor&, const Tensor& slot_tensor) {
  const SessionUse session(HandleOf(ReadSlot(slot_tensor)));
  if (session) session->SkipTensor();
}

void SkipObserved(const Tensor& x, const Tensor& slot_tensor, bool) { SkipOne(x, slot_tensor); }

void NothingForOne(const Tensor&, const Tensor&) {}
void NothingForObserved(const Tensor&, const Tensor&, bool) {}
// The stable ABI boxes optional tensors by value. NOLINTBEGIN(performance-unnecessary-value-param)
void NothingForParameter(const Tensor&, std::optional<Tensor>, const Tensor&) {}
void NothingForLoss(const Tensor&, std::optional<Tensor>, std::optional<Tensor>, std::int64_t, std::int64_t,
                    std::int64_t, const Tensor&) {}
// NOLINTEND(performance-unnecessary-value-param)
double NoNorm(const Tensor&) { return -1.0; }

void ImplementForNested(torch::stable::detail::StableLibrary& library) {
  library.impl("observe", TORCH_BOX(&SkipObserved));
  library.impl("batch", TORCH_BOX(&SkipOne));
  library.impl("loss", TORCH_BOX(&NothingForLoss));
  library.impl("parameter_init", TORCH_BOX(&SkipOne));
  library.impl("parameter_before", TORCH_BOX(&NothingForParameter));
  library.impl("parameter_after", TORCH_BOX(&NothingForOne));
  library.impl("gradient_norm", TORCH_BOX(&NoNorm));
}

}  // namespace
}  // namespace neuraldbg

STABLE_TORCH_LIBRARY(neuraldbg, m) {
  m.def("observe(Tensor x, Tensor slot, bool requires_grad=False) -> ()");
  m.def("batch(Tensor x, Tensor slot) -> ()");
  m.def(
      "loss(Tensor value, Tensor? logits, Tensor? targets, int ignore_index, int kind, int reduction, Tensor slot) -> "
      "()");
  m.def("parameter_init(Tensor value, Tensor slot) -> ()");
  m.def("parameter_before(Tensor value, Tensor? grad, Tensor slot) -> ()");
  m.def("parameter_after(Tensor value, Tensor slot) -> ()");
  m.def("gradient_norm(Tensor grad) -> float");
}

STABLE_TORCH_LIBRARY_IMPL(neuraldbg, CompositeExplicitAutograd, m) {
  m.impl("observe", TORCH_BOX(&neuraldbg::Observe));
  m.impl("batch", TORCH_BOX(&neuraldbg::Batch));
  m.impl("loss", TORCH_BOX(&neuraldbg::Loss));
  m.impl("parameter_init", TORCH_BOX(&neuraldbg::ParameterInit));
  m.impl("parameter_before", TORCH_BOX(&neuraldbg::ParameterBefore));
  m.impl("parameter_after", TORCH_BOX(&neuraldbg::ParameterAfter));
  m.impl("gradient_norm", TORCH_BOX(&neuraldbg::GradientNorm));
}

// "Every backend" leaves nested tensors out. They have no strides to read and are skipped, counted.
STABLE_TORCH_LIBRARY_IMPL(neuraldbg, NestedTensorCPU, m) { neuraldbg::ImplementForNested(m); }
STABLE_TORCH_LIBRARY_IMPL(neuraldbg, NestedTensorCUDA, m) { neuraldbg::ImplementForNested(m); }
STABLE_TORCH_LIBRARY_IMPL(neuraldbg, AutogradNestedTensor, m) { neuraldbg::ImplementForNested(m); }

STABLE_TORCH_LIBRARY_IMPL(neuraldbg, Meta, m) {
  m.impl("observe", TORCH_BOX(&neuraldbg::NothingForObserved));
  m.impl("batch", TORCH_BOX(&neuraldbg::NothingForOne));
  m.impl("loss", TORCH_BOX(&neuraldbg::NothingForLoss));
  m.impl("parameter_init", TORCH_BOX(&neuraldbg::NothingForOne));
  m.impl("parameter_before", TORCH_BOX(&neuraldbg::NothingForParameter));
  m.impl("parameter_after", TORCH_BOX(&neuraldbg::NothingForOne));
  m.impl("gradient_norm", TORCH_BOX(&neuraldbg::NoNorm));
}
