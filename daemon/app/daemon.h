// The composition root: store, feed, gRPC server and ingest thread, put together and taken apart in order.
//
// Threads: Run belongs to the main thread, which has blocked the ending signals (main.cc) and waits for them here.
#pragma once

#include "absl/status/status.h"
#include "daemon/app/config.h"

namespace neuraldbg {

// Runs until SIGTERM, SIGINT or --exit-when-idle. OK: ended in order, everything stored. The message of an error is one
// sentence for the user.
absl::Status RunDaemon(const Config& config);

}  // namespace neuraldbg
