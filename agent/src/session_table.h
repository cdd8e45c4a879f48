// Handles of attached sessions: what turns the slot tensor of an operator call into a session, or into nothing.
//
// A compiled graph keeps calling operators with the slot it was traced with, also after detach, also in a forked child,
// and from any thread. So a handle is never reused; a stale one costs one look-up; and a session is taken out of the
// table and given time to become unused before its segment is unmapped.
//
// Thread-safety: everything. The table is static and trivially destructible: at exit nothing is torn down under threads
// that still run (design: sessions that were not detached are abandoned).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace neuraldbg {

class RankSession;

// Attach and detach this often in one process, and the next attach fails with a sentence.
inline constexpr std::int32_t kMaxSessions = 1024;

// Holds a session in use; empty when the handle is unknown, destroyed, or belongs to the parent of a forked child.
class SessionUse {
 public:
  SessionUse(const SessionUse&) = delete;
  SessionUse& operator=(const SessionUse&) = delete;
  explicit SessionUse(std::int32_t handle) noexcept;
  ~SessionUse();
  explicit operator bool() const noexcept { return session_ != nullptr; }
  RankSession* operator->() const noexcept { return session_; }
  RankSession& operator*() const noexcept { return *session_; }

 private:
  RankSession* session_ = nullptr;
  std::int32_t handle_;
};

// Returns the new handle, or -1 when the table is full (the session is then still the caller's).
std::int32_t RegisterSession(std::unique_ptr<RankSession>& session) noexcept;

// Takes the session out of the table and hands it over once nobody uses it. Null when the handle names no session of
// this process, and when a user does not finish within 50 ms, in which case the session is closed and leaked.
std::unique_ptr<RankSession> UnregisterSession(std::int32_t handle) noexcept;

// A slot is what the operators' slot tensor holds.
inline std::int64_t MakeSlot(std::int32_t handle, std::uint32_t site) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(handle)) << 32 | site);
}
inline std::int32_t HandleOf(std::int64_t slot) noexcept { return static_cast<std::int32_t>(slot >> 32); }
inline std::uint32_t SiteOf(std::int64_t slot) noexcept { return static_cast<std::uint32_t>(slot); }

}  // namespace neuraldbg
