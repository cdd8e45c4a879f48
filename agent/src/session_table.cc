#include "agent/src/session_table.h"

#include <pthread.h>

#include <chrono>
#include <thread>

#include "agent/src/rank_session.h"

namespace neuraldbg {
namespace {

struct alignas(64) Entry {
  std::atomic<RankSession*> session{nullptr};
  std::atomic<std::uint32_t> users{0};
  std::atomic<std::uint32_t> generation{0};  // fork generation of the process that created the session
};

constinit Entry g_entries[kMaxSessions];
constinit std::atomic<std::int32_t> g_next_handle{0};

// Counts forks between the process that loaded the library and this one: a session lives in one generation only. The
// child may attach anew; its parent's sessions are silent in it.
constinit std::atomic<std::uint32_t> g_fork_generation{0};

void WatchForks() noexcept {
  static const int kRegistered = pthread_atfork(nullptr, nullptr, [] { g_fork_generation.fetch_add(1); });
  (void)kRegistered;
}

constexpr std::chrono::milliseconds kPatience{50};  // design: detach returns within 50 ms

bool IsValid(std::int32_t handle) noexcept { return handle >= 0 && handle < kMaxSessions; }

bool BelongsHere(const Entry& entry) noexcept {
  return entry.generation.load(std::memory_order_relaxed) == g_fork_generation.load(std::memory_order_relaxed);
}

bool BecomesUnused(const Entry& entry) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (entry.users.load(std::memory_order_seq_cst) != 0) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

// The user counts itself before it reads the pointer, the remover clears the pointer before it reads the count; both
// sequentially consistent, so that one of them sees the other.
SessionUse::SessionUse(std::int32_t handle) noexcept : handle_(handle) {
  if (!IsValid(handle)) return;
  Entry& entry = g_entries[handle];
  if (entry.session.load(std::memory_order_relaxed) == nullptr || !BelongsHere(entry)) return;
  entry.users.fetch_add(1, std::memory_order_seq_cst);
  session_ = entry.session.load(std::memory_order_seq_cst);
  if (session_ == nullptr) entry.users.fetch_sub(1, std::memory_order_release);
}

SessionUse::~SessionUse() {
  if (session_ != nullptr) g_entries[handle_].users.fetch_sub(1, std::memory_order_release);
}

std::int32_t RegisterSession(std::unique_ptr<RankSession>& session) noexcept {
  WatchForks();
  std::int32_t handle = g_next_handle.load(std::memory_order_relaxed);
  do {
    if (handle >= kMaxSessions) return -1;
  } while (!g_next_handle.compare_exchange_weak(handle, handle + 1, std::memory_order_relaxed));
  Entry& entry = g_entries[handle];
  entry.generation.store(g_fork_generation.load(std::memory_order_relaxed), std::memory_order_relaxed);
  entry.session.store(session.release(), std::memory_order_seq_cst);
  return handle;
}

std::unique_ptr<RankSession> UnregisterSession(std::int32_t handle) noexcept {
  if (!IsValid(handle) || !BelongsHere(g_entries[handle])) return nullptr;
  Entry& entry = g_entries[handle];
  std::unique_ptr<RankSession> session(entry.session.exchange(nullptr, std::memory_order_seq_cst));
  if (session == nullptr || BecomesUnused(entry)) return session;
  session->Close();
  (void)session.release();  // still in use somewhere: its memory must stay
  return nullptr;
}

}  // namespace neuraldbg
