// GET /healthz: whether this daemon records. For supervisors, which read the status and show the sentence.
#pragma once

#include <span>

#include "daemon/http/http_message.h"
#include "daemon/model/daemon_warnings.h"

namespace neuraldbg {

// 200 "ok", or 503 and why. A segment that is left alone is no reason: the others are recorded.
HttpResponse Health(bool draining, std::span<const DaemonWarning> warnings);

}  // namespace neuraldbg
