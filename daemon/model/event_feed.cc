#include "daemon/model/event_feed.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace neuraldbg {

// Held by the reader through a shared_ptr<void>; the feed keeps a weak reference. `mutex` makes the end of a
// subscription wait for a call in progress, so that a listener never outlives what it points to.
struct EventFeed::Subscription {
  std::mutex mutex;
  Listener listener;
};

void EventFeed::Publish(std::uint64_t run_id, std::span<const Transition> transitions, bool diagnosis_changed) {
  {
    const std::lock_guard lock(mutex_);
    if (!runs_.contains(run_id) && runs_.size() >= kRunsMax) runs_.erase(runs_.begin());  // run ids grow: the oldest
    RunPulse& pulse = runs_[run_id];
    ++pulse.version;
    if (!transitions.empty()) {
      pulse.last_transition_id = std::max(pulse.last_transition_id, transitions.back().id);
    }
    if (diagnosis_changed) ++pulse.diagnosis_version;
  }
  changed_.notify_all();
  Notify(run_id);
}

RunPulse EventFeed::Current(std::uint64_t run_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(run_id);
  return found == runs_.end() ? RunPulse{} : found->second;
}

RunPulse EventFeed::Wait(std::uint64_t run_id, std::uint64_t seen,
                         std::chrono::steady_clock::time_point deadline) const {
  std::unique_lock lock(mutex_);
  const auto current = [&] {
    const auto found = runs_.find(run_id);
    return found == runs_.end() ? RunPulse{} : found->second;
  };
  changed_.wait_until(lock, deadline, [&] { return closed_ || current().version > seen; });
  return current();
}

std::shared_ptr<void> EventFeed::Subscribe(Listener listener) {
  auto subscription = std::make_shared<Subscription>();
  subscription->listener = std::move(listener);
  std::uint64_t key = 0;
  {
    const std::lock_guard lock(mutex_);
    key = next_subscription_++;
    subscriptions_[key] = subscription;
  }
  Subscription* const raw = subscription.get();
  return {raw, [this, key, subscription = std::move(subscription)](void*) mutable {
            {
              const std::lock_guard call(subscription->mutex);
              subscription->listener = nullptr;
            }
            const std::lock_guard lock(mutex_);
            subscriptions_.erase(key);
          }};
}

void EventFeed::Notify(std::uint64_t run_id) {
  std::vector<std::shared_ptr<Subscription>> targets;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, weak] : subscriptions_) {
      if (auto subscription = weak.lock()) targets.push_back(std::move(subscription));
    }
  }
  for (const auto& subscription : targets) {
    const std::lock_guard call(subscription->mutex);
    if (subscription->listener) subscription->listener(run_id);
  }
}

void EventFeed::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  Notify(0);
}

bool EventFeed::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace neuraldbg
