// Whose segments a reader may open. Decided on the opened file, never on its name or its header.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>

namespace neuraldbg {

struct SegmentAccess {
  std::optional<std::uint32_t> uid;  // segments of this user; empty: of every user
  std::optional<std::uint32_t> gid;  // besides, those that any user has opened to this group (mode 0660)

  bool Covers(const struct stat& file) const noexcept {
    constexpr mode_t kGroupReadWrite = S_IRGRP | S_IWGRP;
    return !uid || file.st_uid == *uid ||
           (gid && file.st_gid == *gid && (file.st_mode & kGroupReadWrite) == kGroupReadWrite);
  }
};

}  // namespace neuraldbg
