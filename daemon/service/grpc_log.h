// gRPC reports failed binds and connects on standard error in its own words, beside our one sentence. Errors reach us
// as statuses anyway, so it is told to be silent, unless the user asked for its log (GRPC_VERBOSITY).
#pragma once

namespace neuraldbg {

// Call before the first channel or server. Thread-safe, idempotent.
void SilenceGrpcLog();

}  // namespace neuraldbg
