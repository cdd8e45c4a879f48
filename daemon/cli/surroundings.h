// What the environment says where a flag does not: flag > environment > default.
#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "daemon/cli/arguments.h"

namespace neuraldbg {

// A daemon on this host accepts at once; one that needs longer is not there.
inline constexpr std::chrono::milliseconds kConnectPatience{2000};

// Fills address, data directory and token file. INVALID_ARGUMENT, naming flag or variable, where the address is none.
absl::Status ApplySurroundings(Arguments& arguments);

}  // namespace neuraldbg
