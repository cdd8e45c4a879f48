// Calls that wait for something new: streams, and Diagnose with wait_step. One thread serves them all.
//
// The EventFeed says that a run changed; the thread then lets every waiting call look at the store. A call keeps no
// queue of its own beyond one page: its cursor is an id in the store, so a slow reader costs nothing but its socket.
//
// Owner: the server. Thread-safe. Look() of one call is never run twice at the same time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "daemon/model/event_feed.h"

namespace neuraldbg {

// One waiting call. Shared between gRPC's threads (its reactor) and the thread of LiveCalls.
class LiveCall {
 public:
  virtual ~LiveCall() = default;
  // Something may have changed, or time has passed: makes progress without blocking. `closing`: end now.
  virtual void Look(bool closing) = 0;
  // Over: forget it. Called under the lock of LiveCalls: must take no lock.
  virtual bool done() const = 0;
};

class LiveCalls {
 public:
  // `feed` may be null. `calls_max`: how many may wait at once.
  LiveCalls(EventFeed* feed, std::size_t calls_max);
  ~LiveCalls();
  LiveCalls(const LiveCalls&) = delete;
  LiveCalls& operator=(const LiveCalls&) = delete;

  // False when calls_max are waiting already, or after Close.
  bool Add(std::shared_ptr<LiveCall> call);
  // Looks at all calls soon, e.g. because one can write again.
  void Wake();
  // Ends all calls (Look with `closing`), now and later ones; joins the thread. Idempotent.
  void Close();
  std::size_t size() const;

 private:
  void Run();

  // Without news calls are looked at so often: deadlines of waiting callers, stalled readers, a store without feed.
  static constexpr std::chrono::milliseconds kLookInterval{100};

  const std::size_t calls_max_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool news_ = false;
  bool closing_ = false;
  std::vector<std::shared_ptr<LiveCall>> calls_;
  std::shared_ptr<void> subscription_;
  std::thread thread_;
};

}  // namespace neuraldbg
