#include "shared/owner_lock.h"

#include <fcntl.h>
#include <unistd.h>

namespace neuraldbg {
namespace {

struct flock FirstByte() noexcept {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = 0;
  lock.l_len = 1;
  return lock;
}

}  // namespace

bool TakeOwnerLock(int fd) noexcept {
  struct flock lock = FirstByte();
  return ::fcntl(fd, F_SETLK, &lock) == 0;
}

bool OwnerLockHeld(int fd) noexcept {
  struct flock lock = FirstByte();
  return ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace neuraldbg
