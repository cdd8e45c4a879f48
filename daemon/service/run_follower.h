// What a stream knows about the run it follows: which one, whether there is news, whether it goes on.
//
// Owner: the source of one StoreStream; used by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "daemon/model/event_feed.h"
#include "daemon/service/query.h"

namespace neuraldbg {

class RunFollower {
 public:
  RunFollower(StoredRun run, EventFeed* feed) : run_(std::move(run)), feed_(feed) {}

  const StoredRun& run() const { return run_; }

  // Whether the store may hold something new. Asks the feed, and says yes once a second without one: the state of a
  // run may change without an event.
  bool News() {
    const auto now = std::chrono::steady_clock::now();
    const std::uint64_t version = feed_ == nullptr ? 0 : feed_->Current(run_.id).version;
    const bool pulse = feed_ == nullptr || version != seen_version_;
    if (!pulse && now < next_look_) return false;
    seen_version_ = version;
    next_look_ = now + std::chrono::seconds(1);
    return true;
  }

  // Reads the run again. Whoever wants to end with the run must call this before reading what it left behind.
  absl::StatusOr<bool> Ended(StoreReader& reader) {
    // The first launch is called by the plain name, which would mean the newest launch here.
    const bool first = run_.display_name == run_.name;
    absl::StatusOr<StoredRun> run = reader.FindRun(first ? run_.display_name + "#1" : run_.display_name);
    if (!run.ok()) return run.status();
    run_ = *std::move(run);
    return run_.state != RunState::kRunning;
  }

 private:
  StoredRun run_;
  EventFeed* feed_;
  std::uint64_t seen_version_ = ~std::uint64_t{0};
  std::chrono::steady_clock::time_point next_look_{};
};

}  // namespace neuraldbg
