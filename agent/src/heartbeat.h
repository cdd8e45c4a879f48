// The one thread of ours in the training process: stores the segment's heartbeat once a second, so that the daemon can
// tell a hung trainer from a dead one. It runs no Python, takes no lock that an operator takes, and blocks all signals,
// which belong to the trainer.
//
// Owner: RankSession. Start and Stop are for the owner; Stop wakes and joins the thread. At process exit nobody calls
// Stop: the session is leaked on purpose and the thread ends with the process. In a forked child there is no thread,
// and the owner must leak this object there.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "shared/ring_writer.h"

namespace neuraldbg {

class Heartbeat {
 public:
  // `writer` must outlive this object. Returns false when the thread could not be started.
  bool Start(SegmentWriter& writer) noexcept;
  void Stop() noexcept;

 private:
  void Run(SegmentWriter& writer) noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace neuraldbg
