// Who asks. Decided once per call by daemon/service/peer_identity.h, and by the file system for offline reads.
#pragma once

#include <cstdint>

#include "daemon/store/store.h"

namespace neuraldbg {

struct Caller {
  std::uint32_t uid = 0;
  bool admin = false;  // the daemon's own user, root, and holders of the token

  bool Sees(const StoredRun& run) const { return admin || run.owner_uid == uid; }
};

}  // namespace neuraldbg
