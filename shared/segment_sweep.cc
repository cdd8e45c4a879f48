#include "shared/segment_sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>

#include "shared/mapping.h"
#include "shared/owner_lock.h"
#include "shared/ring_layout.h"
#include "shared/segment_name.h"
#include "shared/writer_registry.h"

namespace neuraldbg {
namespace {

enum class Leftover { kNone, kTemporary, kSegment };

std::int64_t SecondsNow(clockid_t clock) noexcept {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec;
}

// Seconds since the owner was last known to live. Stores through a mapping do not move the file's times, so the
// heartbeat counts where there is a plausible one.
std::int64_t SecondsSinceLastSign(int fd, const struct stat& status) noexcept {
  const std::int64_t since_change = SecondsNow(CLOCK_REALTIME) - status.st_mtim.tv_sec;
  SegmentHeader header{};
  if (::pread(fd, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) return since_change;
  if (CheckHeader(header, static_cast<std::uint64_t>(status.st_size)).code != Errc::kOk) return since_change;
  std::uint64_t heartbeat_ns = 0;
  const auto at = static_cast<off_t>(header.offsets.producer + offsetof(ProducerState, heartbeat_ns));
  if (::pread(fd, &heartbeat_ns, sizeof heartbeat_ns, at) != static_cast<ssize_t>(sizeof heartbeat_ns)) {
    return since_change;
  }
  const std::int64_t since_heartbeat =
      SecondsNow(CLOCK_MONOTONIC) - static_cast<std::int64_t>(heartbeat_ns / 1'000'000'000u);
  // Negative: another boot's clock, or nonsense.
  return since_heartbeat >= 0 && since_heartbeat < since_change ? since_heartbeat : since_change;
}

Leftover Examine(int directory, const char* name, const SweepOptions& options) noexcept {
  const std::string_view file_name(name);
  const bool temporary = file_name.starts_with(kTemporaryPrefix);
  if (!temporary && !IsSegmentFileName(file_name)) return Leftover::kNone;
  struct stat status{};
  if (::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return Leftover::kNone;
  if (status.st_uid != options.uid || FindOwnSegment(status.st_dev, status.st_ino) != nullptr) return Leftover::kNone;
  // O_RDWR would be needed to take a lock, not to ask for one.
  const FileDescriptor fd(::openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid() || OwnerLockHeld(fd.get())) return Leftover::kNone;
  const std::int64_t age = SecondsNow(CLOCK_REALTIME) - status.st_mtim.tv_sec;
  if (temporary) return age > options.temporary_ttl.count() ? Leftover::kTemporary : Leftover::kNone;
  if (IsEmptied(fd.get(), status)) return Leftover::kSegment;
  return SecondsSinceLastSign(fd.get(), status) > options.segment_ttl.count() ? Leftover::kSegment : Leftover::kNone;
}

}  // namespace

bool IsEmptied(int fd, const struct stat& file) noexcept {
  if (file.st_size == 0 || file.st_blocks != 0) return false;
  char magic[sizeof kSegmentMagic];
  constexpr char kNothing[sizeof kSegmentMagic] = {};
  return ::pread(fd, magic, sizeof magic, 0) == static_cast<ssize_t>(sizeof magic) &&
         std::memcmp(magic, kNothing, sizeof magic) == 0;
}

SweepResult SweepSegments(const SweepOptions& options) noexcept {
  SweepResult result;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(options.directory.c_str()), &::closedir);
  if (!directory) return result;
  const int fd = ::dirfd(directory.get());
  while (const dirent* entry = ::readdir(directory.get())) {
    const Leftover leftover = Examine(fd, entry->d_name, options);
    if (leftover == Leftover::kNone || ::unlinkat(fd, entry->d_name, 0) != 0) continue;
    (leftover == Leftover::kTemporary ? result.temporary_removed : result.segments_removed) += 1;
  }
  return result;
}

}  // namespace neuraldbg
