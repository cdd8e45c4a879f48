#include "daemon/store/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace neuraldbg::store {
namespace {

absl::Status CreateDirectory(const std::string& directory) {
  const std::filesystem::path path(directory);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::OkStatus();
  }
  if (path.has_parent_path()) {
    std::filesystem::create_directories(path.parent_path(), error);
  }
  // 0700: a run's records are its owner's business.
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::PermissionDeniedError(
        absl::StrCat("The data directory ", directory, " cannot be created: ", std::strerror(errno), "."));
  }
  if (!std::filesystem::is_directory(path, error)) {
    return absl::PermissionDeniedError(absl::StrCat("The data directory ", directory, " is not a directory."));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectoryLock>> DirectoryLock::Acquire(const std::string& directory) {
  if (const absl::Status created = CreateDirectory(directory); !created.ok()) {
    return created;
  }
  const std::string path = directory + "/neuraldbg.lock";
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    const std::string reason = std::strerror(errno);
    return errno == ENOSPC
               ? absl::ResourceExhaustedError(absl::StrCat("The disk of the data directory ", directory, " is full."))
               : absl::PermissionDeniedError(
                     absl::StrCat("The data directory ", directory, " cannot be written: ", reason, "."));
  }
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const bool held = errno == EWOULDBLOCK;
    const std::string reason = std::strerror(errno);
    ::close(descriptor);
    return held ? absl::FailedPreconditionError(
                      absl::StrCat("Another neuraldbgd already uses the data directory ", directory, "."))
                : absl::UnavailableError(absl::StrCat(path, " cannot be locked: ", reason, "."));
  }
  return std::unique_ptr<DirectoryLock>(new DirectoryLock(path, descriptor));
}

void DirectoryLock::RemoveFile() { ::unlink(path_.c_str()); }

DirectoryLock::~DirectoryLock() { ::close(descriptor_); }

}  // namespace neuraldbg::store
