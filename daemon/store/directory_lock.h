// One writer per data directory: an flock on `<directory>/neuraldbg.lock`, freed by the kernel when the process ends.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace neuraldbg::store {

class DirectoryLock {
 public:
  // Creates the directory (0700) if it is missing. FAILED_PRECONDITION: another process holds the lock;
  // PERMISSION_DENIED: the directory cannot be made or written.
  static absl::StatusOr<std::unique_ptr<DirectoryLock>> Acquire(const std::string& directory);
  ~DirectoryLock();
  // For whoever leaves no store behind.
  void RemoveFile();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  DirectoryLock(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  const std::string path_;
  int descriptor_;
};

}  // namespace neuraldbg::store
