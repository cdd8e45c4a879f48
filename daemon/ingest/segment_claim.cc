#include "daemon/ingest/segment_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "shared/ring_layout.h"

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

std::optional<std::uint16_t> SegmentClaim::LayoutMajor() const {
  std::array<char, sizeof kSegmentMagic> magic{};
  std::uint16_t major = 0;
  const bool read =
      ::pread(descriptor_, magic.data(), magic.size(), offsetof(SegmentHeader, magic)) ==
          static_cast<ssize_t>(magic.size()) &&
      ::pread(descriptor_, &major, sizeof major, offsetof(SegmentHeader, major)) == static_cast<ssize_t>(sizeof major);
  if (!read || !std::equal(magic.begin(), magic.end(), kSegmentMagic)) return std::nullopt;
  return major;
}

SegmentClaim::~SegmentClaim() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace neuraldbg
