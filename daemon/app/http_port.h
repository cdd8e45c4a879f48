// What this daemon serves over HTTP, and where.
//
// Owner: the composition root's main thread; the routes run on the server's thread.
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/app/config.h"
#include "daemon/export/daemon_metrics.h"
#include "daemon/http/http_server.h"

namespace neuraldbg {

// Binds the configured address. Nothing: HTTP is off, or no port was free for a daemon that may go without one.
absl::StatusOr<std::unique_ptr<HttpServer>> ListenHttp(const Config& config);

// Puts /healthz and /metrics on it. What `sources` names and `draining` must outlive the server's thread.
void AddRoutes(HttpServer& server, const MetricSources& sources, const std::atomic<bool>& draining);

}  // namespace neuraldbg
