#include "daemon/service/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdlib>

namespace neuraldbg {

void SilenceGrpcLog() {
  constexpr auto kNothing = static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1);
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_verbosity(kNothing);
}

}  // namespace neuraldbg
