#include "daemon/service/live_calls.h"

#include <utility>

namespace neuraldbg {

LiveCalls::LiveCalls(EventFeed* feed, std::size_t calls_max) : calls_max_(calls_max) {
  if (feed != nullptr) subscription_ = feed->Subscribe([this](std::uint64_t) { Wake(); });
  thread_ = std::thread([this] { Run(); });
}

LiveCalls::~LiveCalls() { Close(); }

bool LiveCalls::Add(std::shared_ptr<LiveCall> call) {
  const std::lock_guard lock(mutex_);
  std::erase_if(calls_, [](const auto& waiting) { return waiting->done(); });
  if (closing_ || calls_.size() >= calls_max_) return false;
  calls_.push_back(std::move(call));
  news_ = true;
  wake_.notify_one();
  return true;
}

void LiveCalls::Wake() {
  const std::lock_guard lock(mutex_);
  news_ = true;
  wake_.notify_one();
}

void LiveCalls::Close() {
  subscription_.reset();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

std::size_t LiveCalls::size() const {
  const std::lock_guard lock(mutex_);
  std::size_t waiting = 0;
  for (const auto& call : calls_) waiting += call->done() ? 0 : 1;
  return waiting;
}

void LiveCalls::Run() {
  std::vector<std::shared_ptr<LiveCall>> round;
  for (bool closing = false; !closing;) {
    {
      std::unique_lock lock(mutex_);
      const auto due = [&] { return news_ || closing_; };
      if (calls_.empty()) {
        wake_.wait(lock, due);  // an idle daemon does not wake up
      } else {
        wake_.wait_for(lock, kLookInterval, due);
      }
      news_ = false;
      closing = closing_;
      std::erase_if(calls_, [](const auto& call) { return call->done(); });
      round = calls_;
    }
    for (const auto& call : round) call->Look(closing);
    round.clear();
  }
}

}  // namespace neuraldbg
