#include "daemon/app/daemon.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/app/endpoint_file.h"
#include "daemon/app/http_port.h"
#include "daemon/app/ingest_loop.h"
#include "daemon/app/log.h"
#include "daemon/model/daemon_warnings.h"
#include "daemon/model/event_feed.h"
#include "daemon/service/report.h"
#include "daemon/service/server.h"
#include "daemon/store/store.h"

namespace neuraldbg {
namespace {

// How long running RPCs may take at the end; a client that needs longer asks the next daemon.
constexpr std::chrono::milliseconds kShutdownPatience{2000};
constexpr std::chrono::milliseconds kIdleCheckPeriod{100};

ServerOptions ServerOptionsOf(const Config& config, EventFeed& feed, const DaemonWarnings& warnings) {
  ServerOptions options;
  options.listen = config.grpc;
  options.open_reader = [directory = config.data_directory] { return Store::OpenReadOnly(directory); };
  options.feed = &feed;
  options.warnings = &warnings;
  options.daemon_uid = ::geteuid();
  options.allowed_uids = config.allowed_uids;
  options.token_file = config.token_file;
  return options;
}

IngestOptions IngestOptionsOf(const Config& config, DaemonWarnings& warnings) {
  IngestOptions options;
  options.watcher = {.directory = config.shm_directory, .access = config.segment_access};
  options.host_name = config.host_name;
  options.warnings = &warnings;
  if (!config.exit_when_idle_s) return options;
  // Nobody may be there to ask once this daemon has ended: what it found out stays behind as files.
  options.on_run_end = [directory = config.data_directory + "/reports"](StoreReader& store, const StoredRun& run) {
    const absl::StatusOr<StoredRun> current = store.FindRun(run.display_name);
    const absl::Status status = current.ok() ? WriteReport(store, *current, directory) : current.status();
    if (!status.ok()) spdlog::error("run {}: no report was written: {}", run.display_name, status.ToString());
  };
  return options;
}

MetricSources MetricSourcesOf(const Config& config, const IngestLoop& ingest, const DaemonWarnings& warnings,
                              const GrpcServer& server) {
  MetricSources sources;
  sources.ingest = &ingest.counters();
  sources.warnings = &warnings;
  sources.open_reader = [directory = config.data_directory] { return Store::OpenReadOnly(directory); };
  sources.data_directory = config.data_directory;
  sources.event_streams = [&server] { return server.active_calls(); };
  return sources;
}

// Returns at a signal or when the daemon has been idle long enough; the reason, for the log.
std::string WaitForEnd(const Config& config, const IngestLoop& ingest, const GrpcServer& server) {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ending, number);
  const timespec period{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kIdleCheckPeriod).count()};
  for (;;) {
    const int number =
        config.exit_when_idle_s ? sigtimedwait(&ending, nullptr, &period) : sigwaitinfo(&ending, nullptr);
    if (number == SIGHUP) continue;  // a lost terminal is no reason to end
    if (number > 0) return absl::StrCat("signal ", number);
    if (!config.exit_when_idle_s || server.active_calls() > 0) continue;
    if (ingest.idle_for() >= std::chrono::duration<double>(*config.exit_when_idle_s)) return "idle";
  }
}

}  // namespace

absl::Status RunDaemon(const Config& config) {
  struct stat status{};
  if (::stat(config.shm_directory.c_str(), &status) != 0) {
    return absl::NotFoundError(absl::StrCat("The shared-memory directory ", config.shm_directory, " is not there."));
  }
  if (!S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("The shared-memory directory ", config.shm_directory, " is no directory."));
  }
  absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(config.data_directory);
  if (!store.ok()) return store.status();
  absl::StatusOr<std::unique_ptr<HttpServer>> http = ListenHttp(config);
  if (!http.ok()) return http.status();
  EventFeed feed;
  DaemonWarnings warnings;
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(ServerOptionsOf(config, feed, warnings));
  if (!server.ok()) return server.status();
  const std::string http_address = *http == nullptr ? "" : (*http)->address();
  EndpointFile endpoint(config.data_directory);
  if (absl::Status written = endpoint.Write((*server)->addresses(), http_address); !written.ok()) return written;
  spdlog::info("neuraldbgd {} serves {}{}, data in {}, segments from {}", NEURALDBG_VERSION,
               absl::StrJoin((*server)->addresses(), ", "),
               http_address.empty() ? "" : absl::StrCat(", http://", http_address), config.data_directory,
               config.shm_directory);

  IngestLoop ingest(**store, feed, IngestOptionsOf(config, warnings));
  std::atomic<bool> draining = false;
  if (*http != nullptr) {
    AddRoutes(**http, MetricSourcesOf(config, ingest, warnings, **server), draining);
    (*http)->Serve();
  }
  std::thread thread([&] { ingest.Run(); });
  const std::string reason = WaitForEnd(config, ingest, **server);
  spdlog::info("ending: {}", reason);
  draining = true;
  (*server)->Drain();
  // Ingest ends first, so that readers that wait for the last step still get it.
  ingest.Stop();
  thread.join();
  feed.Close();
  (*server)->Shutdown(kShutdownPatience);
  if (*http != nullptr) (*http)->Stop();  // last: until then it says that this daemon drains
  endpoint.Remove();
  return absl::OkStatus();
}

}  // namespace neuraldbg
