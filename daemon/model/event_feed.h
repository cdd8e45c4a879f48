// Tells readers that something new is in the store. It carries no data: a reader that wakes up asks the store for what
// came after the last thing it saw, so a slow reader costs the ingest thread nothing and can never miss an event.
//
// Owner: the composition root. Thread-safe. One writer (the ingest thread) publishes after the commit is durable, so a
// reader that saw a pulse finds in the store everything the pulse stands for. Memory: one entry per run of this
// daemon's life, at most kRunsMax.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "daemon/model/diagnosis.h"

namespace neuraldbg {

// What is known of a run without asking the store. Every field only grows.
struct RunPulse {
  std::uint64_t version = 0;             // rises by one with each Publish for the run; 0 = nothing yet
  std::uint64_t last_transition_id = 0;  // newest transition published
  std::uint64_t diagnosis_version = 0;   // rises when the stored diagnosis changed
};

class EventFeed {
 public:
  static constexpr std::size_t kRunsMax = 4096;

  // Wakes all waiting readers of the run and calls the listeners. `transitions` are those of one commit, in order.
  void Publish(std::uint64_t run_id, std::span<const Transition> transitions, bool diagnosis_changed);

  RunPulse Current(std::uint64_t run_id) const;

  // Waits until the run's version is larger than `seen`, the deadline passes, or Close. Returns the current pulse;
  // its version equals `seen` if nothing happened.
  RunPulse Wait(std::uint64_t run_id, std::uint64_t seen, std::chrono::steady_clock::time_point deadline) const;

  // `listener` is called on the writer's thread after every Publish of any run and after Close, without a lock held: it
  // may only hand over (set a flag, wake an event loop) and must not block. It is not called any more once the returned
  // token is destroyed; the destruction waits for a call in progress, so it must not happen inside the listener.
  using Listener = std::function<void(std::uint64_t run_id)>;
  [[nodiscard]] std::shared_ptr<void> Subscribe(Listener listener);

  // Ends all waiting, for good: the daemon is going down.
  void Close();
  bool closed() const;

 private:
  struct Subscription;
  void Notify(std::uint64_t run_id);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool closed_ = false;
  std::map<std::uint64_t, RunPulse> runs_;
  std::map<std::uint64_t, std::weak_ptr<Subscription>> subscriptions_;
  std::uint64_t next_subscription_ = 0;
};

}  // namespace neuraldbg
