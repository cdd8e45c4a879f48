#include "daemon/app/http_port.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "daemon/app/log.h"
#include "daemon/http/health.h"

namespace neuraldbg {

absl::StatusOr<std::unique_ptr<HttpServer>> ListenHttp(const Config& config) {
  // Every user of a host who trains has a daemon of that kind; a host with more of them is none we know.
  constexpr std::uint16_t kPortsTried = 100;
  if (!config.http) return nullptr;
  HttpServerOptions options;
  options.address = *config.http;
  options.ports_tried = config.http_next_free ? kPortsTried : 1;
  options.daemon_uid = ::geteuid();
  options.allowed_uids = config.allowed_uids;
  options.token_file = config.token_file;
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Listen(std::move(options));
  if (!server.ok() && config.http_next_free && absl::IsUnavailable(server.status())) {
    spdlog::warn("no HTTP: {}", std::string(server.status().message()));
    return nullptr;
  }
  return server;
}

void AddRoutes(HttpServer& server, const MetricSources& sources, const std::atomic<bool>& draining) {
  server.Route("/healthz", [warnings = sources.warnings, &draining](const HttpRequest&) {
    return Health(draining.load(std::memory_order_relaxed), warnings->Current());
  });
  server.Route("/metrics", [metrics = std::make_shared<DaemonMetrics>(sources)](const HttpRequest& request) {
    HttpResponse response;
    response.content_type = kPrometheusContentType;
    response.body = metrics->Text([&](const StoredRun& run) { return request.caller.Sees(run); });
    return response;
  });
}

}  // namespace neuraldbg
