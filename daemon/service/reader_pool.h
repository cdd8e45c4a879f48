// A few read-only views of the store, lent to calls. RPC threads never wait for the ingest thread: SQLite in WAL mode
// lets them read while it writes.
//
// Owner: the server; must outlive every lease. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/store/store.h"

namespace neuraldbg {

class ReaderPool {
 public:
  using Opener = std::function<absl::StatusOr<std::unique_ptr<StoreReader>>()>;
  ReaderPool(Opener open, std::size_t readers_max) : open_(std::move(open)), readers_max_(readers_max) {}

  // Returned to the pool when it goes out of scope.
  class Lease {
   public:
    Lease(ReaderPool& pool, std::unique_ptr<StoreReader> reader) : pool_(&pool), reader_(std::move(reader)) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (reader_) pool_->Return(std::move(reader_));
    }
    StoreReader& operator*() const { return *reader_; }

   private:
    ReaderPool* pool_;
    std::unique_ptr<StoreReader> reader_;
  };

  // Waits while all are lent: reads take milliseconds, and waiting bounds memory and open files.
  absl::StatusOr<Lease> Borrow();

 private:
  void Return(std::unique_ptr<StoreReader> reader);

  const Opener open_;
  const std::size_t readers_max_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<StoreReader>> idle_;
  std::size_t opened_ = 0;
};

}  // namespace neuraldbg
