#include "agent/src/heartbeat.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <utility>

namespace neuraldbg {

namespace {
// docs/ring-format.md: the reader calls a rank silent after several of these.
constexpr std::chrono::seconds kPeriod{1};
}  // namespace

bool Heartbeat::Start(std::function<void()> beat) noexcept {
  sigset_t all, previous;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &previous) != 0) return false;
  bool started = true;
  try {
    thread_ = std::thread([this, beat = std::move(beat)] { Run(beat); });
    pthread_setname_np(thread_.native_handle(), "neuraldbg");
  } catch (...) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  return started;
}

void Heartbeat::Run(const std::function<void()>& beat) noexcept {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();  // a beat that makes a new segment takes its time, and Stop must not wait for the lock as well
    beat();
    lock.lock();
    wake_.wait_for(lock, kPeriod, [this] { return stop_; });
  }
}

void Heartbeat::Stop() noexcept {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

}  // namespace neuraldbg
