#include "daemon/ingest/segment_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "shared/ring_layout.h"
#include "shared/segment_sweep.h"

namespace neuraldbg {

std::optional<SegmentClaim> SegmentClaim::Take(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return std::nullopt;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    ::close(descriptor);
    return std::nullopt;
  }
  return SegmentClaim(descriptor);
}

SegmentClaim::SegmentClaim(SegmentClaim&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

SegmentClaim& SegmentClaim::operator=(SegmentClaim&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool SegmentClaim::Unlinked() const {
  struct stat status{};
  return ::fstat(descriptor_, &status) == 0 && status.st_nlink == 0;
}

// Magic and version stand first in every layout there will ever be; nothing behind them may be read here.
std::optional<LayoutVersion> SegmentClaim::Layout() const {
  struct {
    char magic[sizeof kSegmentMagic];
    std::uint16_t major, minor;
  } start{};
  static_assert(offsetof(SegmentHeader, magic) == 0 && offsetof(SegmentHeader, major) == sizeof kSegmentMagic &&
                offsetof(SegmentHeader, minor) == sizeof kSegmentMagic + sizeof start.major);
  constexpr std::size_t kBytes = sizeof start.magic + sizeof start.major + sizeof start.minor;
  if (::pread(descriptor_, &start, kBytes, 0) != static_cast<ssize_t>(kBytes)) return std::nullopt;
  if (!std::equal(std::begin(start.magic), std::end(start.magic), kSegmentMagic)) return std::nullopt;
  return LayoutVersion{start.major, start.minor};
}

bool SegmentClaim::Emptied() const {
  struct stat status{};
  return ::fstat(descriptor_, &status) == 0 && IsEmptied(descriptor_, status);
}

SegmentClaim::~SegmentClaim() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace neuraldbg
