// Which site a call of a module reports as, where the module runs several times in one forward pass (a Dropout that a
// block uses twice, a layer whose weights are shared over the depth). Each call is a node of its own in the causal
// graph: merged, the second call would feed its own inputs, and neither would explain what it did.
//
// A compiled graph knows one slot per module (docs/compatibility.md, rule 3), so calls are told apart when they happen:
// they are counted within a forward pass, and gradients come back in the reverse order.
//
// Thread-safety: any thread. Two threads inside the same module at once may exchange their numbers; nothing is lost.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/manifest.h"

namespace neuraldbg {

// More calls than this are a loop rather than a structure; they stay one site. The Python package has the same number.
inline constexpr std::size_t kMaxCalls = 16;
// In the list of a module's gradients: this call gets none (kNoSite: it gets one that nobody asked for).
inline constexpr std::uint32_t kNoGradient = kNoSite - 1;

class CallTable {
 public:
  // `forward`: null for a forward slot, else the table of the slot that these are the gradients of; it must outlive
  // this one. At most kMaxCalls sites.
  CallTable(std::span<const std::uint32_t> sites, const CallTable* forward) noexcept
      : size_(sites.size()), forward_(forward) {
    std::copy(sites.begin(), sites.end(), sites_.begin());
  }

  // The site of the call that is just happening; kNoSite when it is not to be observed.
  std::uint32_t Next(std::uint64_t pass) noexcept {
    const std::uint64_t calls = calls_.load(std::memory_order_relaxed);
    const std::size_t call = calls >> kCallBits == (pass & kPassMask) ? calls & kCallMask : 0;
    calls_.store((pass & kPassMask) << kCallBits | std::min<std::size_t>(call + 1, kCallMask),
                 std::memory_order_relaxed);
    return forward_ == nullptr ? sites_[call % size_] : GradientOf(call, forward_->CallsIn(pass));
  }

 private:
  static constexpr unsigned kCallBits = 16;
  static constexpr std::uint64_t kCallMask = (1u << kCallBits) - 1;
  static constexpr std::uint64_t kPassMask = ~std::uint64_t{0} >> kCallBits;

  std::size_t CallsIn(std::uint64_t pass) const noexcept {
    const std::uint64_t calls = calls_.load(std::memory_order_relaxed);
    return calls >> kCallBits == (pass & kPassMask) ? calls & kCallMask : 0;
  }

  // The n-th gradient belongs to the n-th last call that gets one. A pass that called the module less often than the
  // first one (a layer was skipped) has fewer; one that checkpointing runs again has more, and those repeat.
  std::uint32_t GradientOf(std::size_t gradient, std::size_t calls) const noexcept {
    const std::size_t made = calls == 0 || calls > size_ ? size_ : calls;
    std::array<std::uint32_t, kMaxCalls> expected;
    std::size_t count = 0;
    for (std::size_t call = made; call-- > 0;) {
      if (sites_[call] != kNoGradient) expected[count++] = sites_[call];
    }
    return count == 0 ? kNoSite : expected[gradient % count];
  }

  std::array<std::uint32_t, kMaxCalls> sites_{};
  std::size_t size_;
  const CallTable* forward_;
  std::atomic<std::uint64_t> calls_{0};  // pass << 16 | calls in it
};

}  // namespace neuraldbg
