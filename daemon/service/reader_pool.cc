#include "daemon/service/reader_pool.h"

#include <utility>

namespace neuraldbg {

absl::StatusOr<ReaderPool::Lease> ReaderPool::Borrow() {
  {
    std::unique_lock lock(mutex_);
    returned_.wait(lock, [&] { return !idle_.empty() || opened_ < readers_max_; });
    if (!idle_.empty()) {
      std::unique_ptr<StoreReader> reader = std::move(idle_.back());
      idle_.pop_back();
      return Lease(*this, std::move(reader));
    }
    ++opened_;
  }
  absl::StatusOr<std::unique_ptr<StoreReader>> reader = open_();
  if (reader.ok()) return Lease(*this, *std::move(reader));
  {
    const std::lock_guard lock(mutex_);
    --opened_;
  }
  returned_.notify_one();
  return reader.status();
}

void ReaderPool::Return(std::unique_ptr<StoreReader> reader) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(reader));
  }
  returned_.notify_one();
}

}  // namespace neuraldbg
