// Containment of truncation under a mapping. Whoever may write a segment's file can shorten it, and the next access of
// the daemon would be a SIGBUS. The handler (installed at the first guard) replaces the lost part of a guarded range by
// private zero pages and marks the guard; whoever reads through the mapping asks Poisoned() before it believes a byte.
// Faults elsewhere go to whatever handled SIGBUS before.
//
// Thread-safety: guards may be made, asked and dropped on any thread. At most kMaxGuards at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace neuraldbg {

class SigbusGuard {
 public:
  static constexpr std::size_t kMaxGuards = 1024;

  SigbusGuard() = default;
  // active() is false when the table is full or the handler could not be installed.
  explicit SigbusGuard(std::span<std::byte> range) noexcept;
  ~SigbusGuard();
  SigbusGuard(SigbusGuard&& other) noexcept : slot_(other.slot_) { other.slot_ = nullptr; }
  SigbusGuard& operator=(SigbusGuard&& other) noexcept;

  bool active() const noexcept { return slot_ != nullptr; }
  bool Poisoned() const noexcept;

  struct Slot {
    std::atomic<std::uintptr_t> begin{0};  // 0: free, 1: being filled
    std::atomic<std::size_t> bytes{0};
    std::atomic<bool> poisoned{false};
  };

 private:
  Slot* slot_ = nullptr;
};

}  // namespace neuraldbg
