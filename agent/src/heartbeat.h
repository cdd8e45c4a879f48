// The one thread of ours in the training process: once a second it stores the segment's heartbeat, so that the daemon
// can tell a hung trainer from a dead one, and sees to it that the segment's file is still there. It runs no Python,
// takes no lock that an operator takes, and blocks all signals, which belong to the trainer.
//
// Owner: RankSession. Start and Stop are for the owner; Stop wakes and joins the thread. At process exit nobody calls
// Stop: the session is leaked on purpose and the thread ends with the process. In a forked child there is no thread,
// and the owner must leak this object there.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace neuraldbg {

class Heartbeat {
 public:
  // `beat` is called at once and then once a second, until Stop. Returns false when the thread could not be started.
  bool Start(std::function<void()> beat) noexcept;
  void Stop() noexcept;

 private:
  void Run(const std::function<void()>& beat) noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace neuraldbg
