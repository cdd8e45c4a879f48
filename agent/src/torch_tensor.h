// From a torch tensor to a TensorView, through the C functions of LibTorch's stable ABI. Nothing here throws: a tensor
// that cannot be read on the host without a copy or a synchronisation simply yields false.
//
// Ownership: views borrow; the torch tensor must outlive them (it does, for the duration of an operator call).
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#include "agent/src/tensor_layout.h"

namespace neuraldbg {

// True for dense tensors in host memory whose element type and number of dimensions this agent reads.
bool ViewOf(const torch::stable::Tensor& tensor, TensorView& view) noexcept;

// The slot that a site's slot tensor holds, or -1.
std::int64_t ReadSlot(const torch::stable::Tensor& slot) noexcept;

// Whether this thread is inside a backward pass. A forward pass that runs there is activation checkpointing's second
// one. False where this torch does not tell.
bool InBackward() noexcept;

}  // namespace neuraldbg
