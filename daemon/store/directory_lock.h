// One writer per data directory: an flock on `<directory>/neuraldbg.lock`, freed by the kernel when the process ends.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace neuraldbg::store {

class DirectoryLock {
 public:
  // Creates the directory (0700) if it is missing. FAILED_PRECONDITION: another process holds the lock;
  // PERMISSION_DENIED: the directory cannot be made or written.
  static absl::StatusOr<std::unique_ptr<DirectoryLock>> Acquire(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace neuraldbg::store
