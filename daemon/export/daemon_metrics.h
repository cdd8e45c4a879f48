// The metrics of one daemon, as /metrics serves them; docs/metrics.md lists every one.
//
// Owner: the composition root. Text is called on one thread at a time, that of the HTTP server. Everything comes from
// what is there for others already: atomics of the ingest thread, a read-only view of the store, the list of warnings.
// Nothing that the ingest thread could wait for is added.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/export/prometheus.h"
#include "daemon/model/daemon_warnings.h"
#include "daemon/model/ingest_counters.h"
#include "daemon/store/store.h"

namespace neuraldbg {

// Not owned; all must outlive DaemonMetrics.
struct MetricSources {
  const IngestCounters* ingest = nullptr;
  const DaemonWarnings* warnings = nullptr;
  std::function<absl::StatusOr<std::unique_ptr<StoreReader>>()> open_reader;
  std::string data_directory;
  std::function<std::size_t()> event_streams;  // open now
};

class DaemonMetrics {
 public:
  // Live runs with series of their own, the newest first. A host trains a few at a time; what a metrics server keeps
  // grows with every run it has ever seen.
  static constexpr std::size_t kRunsMax = 16;

  explicit DaemonMetrics(MetricSources sources) : sources_(std::move(sources)) {}

  // `sees`: the runs that whoever asks may know of.
  std::string Text(const std::function<bool(const StoredRun&)>& sees);

 private:
  struct LiveRun {
    StoredRun run;
    Verdict verdict = Verdict::INCOMPLETE_DATA;
    std::uint64_t produced = 0, received = 0, dropped = 0;  // over all ranks
  };
  struct RunsNow {
    std::vector<LiveRun> shown;
    std::size_t running = 0, finished = 0, died = 0;
  };

  void Process(PrometheusText& text) const;
  void Ingest(PrometheusText& text) const;
  void RefusedSegments(PrometheusText& text) const;
  void Warnings(PrometheusText& text) const;
  void Runs(PrometheusText& text, const absl::StatusOr<RunsNow>& runs) const;
  absl::StatusOr<RunsNow> ReadRuns(const std::function<bool(const StoredRun&)>& sees);
  absl::StatusOr<LiveRun> ReadLive(const StoredRun& run);

  MetricSources sources_;
  std::unique_ptr<StoreReader> reader_;  // opened when first needed
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace neuraldbg
