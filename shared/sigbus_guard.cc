#include "shared/sigbus_guard.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

namespace neuraldbg {
namespace {

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "the handler may touch nothing that locks");

constinit std::array<SigbusGuard::Slot, SigbusGuard::kMaxGuards> g_slots{};
struct sigaction g_previous{};
std::uintptr_t g_page_bytes = 4096;

void CallPrevious(int signal, siginfo_t* info, void* context) {
  if ((g_previous.sa_flags & SA_SIGINFO) != 0 && g_previous.sa_sigaction != nullptr) {
    g_previous.sa_sigaction(signal, info, context);
    return;
  }
  if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN) {
    g_previous.sa_handler(signal);
    return;
  }
  // Back to the default action: returning repeats the faulting access, which then ends the process as it should.
  struct sigaction restore{};
  restore.sa_handler = SIG_DFL;
  ::sigaction(signal, &restore, nullptr);
}

void OnSigbus(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (SigbusGuard::Slot& slot : g_slots) {
    const std::uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    const std::size_t bytes = slot.bytes.load(std::memory_order_acquire);
    if (begin <= 1 || address < begin || address - begin >= bytes) continue;
    slot.poisoned.store(true, std::memory_order_release);
    const std::uintptr_t page = address & ~(g_page_bytes - 1);
    // mmap itself is not on the list of async-signal-safe functions; the bare system call is.
    const long patched = ::syscall(SYS_mmap, page, begin + bytes - page, PROT_READ | PROT_WRITE,
                                   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (patched == static_cast<long>(page)) return;
  }
  CallPrevious(signal, info, context);
}

bool InstallHandler() noexcept {
  static const bool installed = [] {
    g_page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action{};
    action.sa_sigaction = &OnSigbus;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return ::sigaction(SIGBUS, &action, &g_previous) == 0;
  }();
  return installed;
}

}  // namespace

SigbusGuard::SigbusGuard(std::span<std::byte> range) noexcept {
  if (!InstallHandler()) return;
  for (Slot& slot : g_slots) {
    std::uintptr_t free = 0;
    if (!slot.begin.compare_exchange_strong(free, 1, std::memory_order_acq_rel)) continue;
    slot.poisoned.store(false, std::memory_order_relaxed);
    slot.bytes.store(range.size(), std::memory_order_relaxed);
    slot.begin.store(reinterpret_cast<std::uintptr_t>(range.data()), std::memory_order_release);
    slot_ = &slot;
    return;
  }
}

SigbusGuard::~SigbusGuard() {
  if (slot_ == nullptr) return;
  slot_->bytes.store(0, std::memory_order_release);
  slot_->begin.store(0, std::memory_order_release);
}

SigbusGuard& SigbusGuard::operator=(SigbusGuard&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

bool SigbusGuard::Poisoned() const noexcept {
  return slot_ != nullptr && slot_->poisoned.load(std::memory_order_acquire);
}

}  // namespace neuraldbg
