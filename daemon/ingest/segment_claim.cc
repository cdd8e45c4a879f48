#include "daemon/ingest/segment_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <utility>

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

SegmentClaim::~SegmentClaim() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace neuraldbg
