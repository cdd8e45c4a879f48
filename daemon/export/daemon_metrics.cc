#include "daemon/export/daemon_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <utility>

#include "shared/ring_layout.h"

namespace neuraldbg {
namespace {

constexpr auto kCounter = PrometheusText::Type::kCounter;
constexpr auto kGauge = PrometheusText::Type::kGauge;

// What a segment can be refused for; shown from the start, because a counter that appears with its first event hides
// that event from rate().
constexpr auto kRefusals = std::to_array<Errc>({Errc::kIo, Errc::kPermission, Errc::kBadMagic, Errc::kBadVersion,
                                                Errc::kBadLayout, Errc::kBadOwner, Errc::kCorrupt});
constexpr auto kVerdicts =
    std::to_array<Verdict>({Verdict::HEALTHY, Verdict::FAULT, Verdict::INCOMPLETE_DATA, Verdict::UNSURE});

double Number(const std::atomic<std::uint64_t>& count) {
  return static_cast<double>(count.load(std::memory_order_relaxed));
}
double Number(std::size_t count) { return static_cast<double>(count); }

std::string LayoutOfThisRelease() { return LayoutVersion{kLayoutMajor, kLayoutMinor}.Text(); }

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

std::string DaemonMetrics::Text(const std::function<bool(const StoredRun&)>& sees) {
  PrometheusText text;
  Process(text);
  Ingest(text);
  RefusedSegments(text);
  Warnings(text);
  Runs(text, ReadRuns(sees));
  return text.text();
}

void DaemonMetrics::Process(PrometheusText& text) const {
  text.Metric("neuraldbg_build_info", kGauge, "Release of the daemon and the segment layout that it reads; always 1.");
  text.Sample({{"version", NEURALDBG_VERSION}, {"segment_layout", LayoutOfThisRelease()}}, 1);
  text.Metric("neuraldbg_uptime_seconds", kGauge, "Since the daemon started.");
  text.Sample(std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count());
  text.Metric("neuraldbg_process_cpu_seconds_total", kCounter, "CPU time of the daemon, user and system.");
  text.Sample(CpuSeconds());
  text.Metric("neuraldbg_process_resident_memory_bytes", kGauge, "Memory of the daemon that is resident.");
  text.Sample(ResidentBytes());
  text.Metric("neuraldbg_event_streams", kGauge, "Event and diagnosis streams and waiting calls that are open.");
  text.Sample(Number(sources_.event_streams ? sources_.event_streams() : 0));
}

void DaemonMetrics::Ingest(PrometheusText& text) const {
  const IngestCounters& ingest = *sources_.ingest;
  text.Metric("neuraldbg_segments_live", kGauge, "Segments that are drained now: ranks of this host.");
  text.Sample(Number(ingest.segments_live));
  text.Metric("neuraldbg_segments_adopted_total", kCounter, "Segments that this daemon began to drain.");
  text.Sample(Number(ingest.segments_adopted));
  text.Metric("neuraldbg_ring_slots_drained_total", kCounter, "Ring slots that this daemon took, valid or not.");
  text.Sample(Number(ingest.slots_drained));
  text.Metric("neuraldbg_lanes_quarantined", kGauge,
              "Lanes of live segments that contradicted themselves too often and are not read any more.");
  text.Sample(Number(ingest.lanes_quarantined));
  text.Metric("neuraldbg_store_failures_total", kCounter, "Writes that the store refused; each is tried again.");
  text.Sample(Number(ingest.store_failures));
  text.Metric("neuraldbg_store_bytes", kGauge, "Size of the store's files.");
  text.Sample(static_cast<double>(Store::BytesOnDisk(sources_.data_directory)));
}

void DaemonMetrics::RefusedSegments(PrometheusText& text) const {
  const IngestCounters& ingest = *sources_.ingest;
  text.Metric("neuraldbg_segments_refused_total", kCounter, "Files that look like segments and are left alone.");
  for (const Errc code : kRefusals) {
    text.Sample({{"reason", std::string(ErrcName(code))}},
                Number(ingest.segments_refused[static_cast<std::size_t>(code)]));
  }
  text.Metric("neuraldbg_segment_version_skew_info", kGauge,
              "Segment layouts of jobs of another release, which are not watched; always 1.");
  for (const LayoutVersion& theirs : ingest.other_layouts.All()) {
    text.Sample({{"segment_layout", theirs.Text()}, {"daemon_layout", LayoutOfThisRelease()}}, 1);
  }
}

void DaemonMetrics::Warnings(PrometheusText& text) const {
  std::size_t not_storing = 0, left_alone = 0;
  for (const DaemonWarning& warning : sources_.warnings->Current()) {
    ++(warning.kind == DaemonWarning::Kind::kNotStoring ? not_storing : left_alone);
  }
  text.Metric("neuraldbg_warnings", kGauge, "What keeps the daemon from recording, as neuraldbgctl status shows it.");
  text.Sample({{"kind", "not_storing"}}, Number(not_storing));
  text.Sample({{"kind", "segment_left_alone"}}, Number(left_alone));
}

absl::StatusOr<DaemonMetrics::LiveRun> DaemonMetrics::ReadLive(const StoredRun& run) {
  LiveRun live{.run = run};
  const absl::StatusOr<Diagnosis> diagnosis = reader_->GetDiagnosis(run.id);
  if (diagnosis.ok()) live.verdict = diagnosis->verdict;
  if (!diagnosis.ok() && !absl::IsNotFound(diagnosis.status())) return diagnosis.status();
  const absl::StatusOr<std::vector<StoredRank>> ranks = reader_->ListRanks(run.id);
  if (!ranks.ok()) return ranks.status();
  for (const StoredRank& rank : *ranks) {
    live.produced += rank.records_produced;
    live.received += rank.records_received;
    live.dropped += rank.records_dropped;
  }
  return live;
}

absl::StatusOr<DaemonMetrics::RunsNow> DaemonMetrics::ReadRuns(const std::function<bool(const StoredRun&)>& sees) {
  if (reader_ == nullptr) {
    absl::StatusOr<std::unique_ptr<StoreReader>> opened = sources_.open_reader();
    if (!opened.ok()) return opened.status();
    reader_ = *std::move(opened);
  }
  const absl::StatusOr<std::vector<StoredRun>> runs = reader_->ListRuns();
  if (!runs.ok()) return runs.status();
  RunsNow now;
  for (const StoredRun& run : *runs) {
    if (!sees(run)) continue;
    ++(run.state == RunState::kRunning ? now.running : run.state == RunState::kFinished ? now.finished : now.died);
    if (run.state != RunState::kRunning || now.shown.size() == kRunsMax) continue;
    absl::StatusOr<LiveRun> live = ReadLive(run);
    if (!live.ok()) return live.status();
    now.shown.push_back(*std::move(live));
  }
  return now;
}

void DaemonMetrics::Runs(PrometheusText& text, const absl::StatusOr<RunsNow>& runs) const {
  text.Metric("neuraldbg_store_readable", kGauge,
              "Whether the store could be read for this answer; 0: no run is shown.");
  text.Sample(runs.ok() ? 1 : 0);
  if (!runs.ok()) return;
  text.Metric("neuraldbg_runs", kGauge, "Stored runs by state.");
  text.Sample({{"state", "running"}}, Number(runs->running));
  text.Sample({{"state", "finished"}}, Number(runs->finished));
  text.Sample({{"state", "died"}}, Number(runs->died));
  text.Metric("neuraldbg_runs_suppressed", kGauge,
              "Live runs beyond the newest 16, which have no series of their own.");
  text.Sample(Number(runs->running - runs->shown.size()));
  const auto each = [&](const char* name, PrometheusText::Type type, const char* help, const auto& value) {
    text.Metric(name, type, help);
    for (const LiveRun& live : runs->shown) {
      text.Sample({{"run", live.run.display_name}}, static_cast<double>(value(live)));
    }
  };
  each("neuraldbg_run_steps", kGauge, "Steps of a live run that the optimizer ended.",
       [](const LiveRun& live) { return live.run.steps_seen; });
  each("neuraldbg_run_records_received_total", kCounter, "Records of a live run that were stored, over all ranks.",
       [](const LiveRun& live) { return live.received; });
  each("neuraldbg_run_records_dropped_total", kCounter, "Records that found no room in the ring.",
       [](const LiveRun& live) { return live.dropped; });
  each("neuraldbg_run_records_corrupt_total", kCounter, "Records that failed validation.",
       [](const LiveRun& live) { return live.produced - live.received - live.dropped; });
  text.Metric("neuraldbg_run_verdict", kGauge, "1 for the verdict that a live run has now.");
  for (const LiveRun& live : runs->shown) {
    for (const Verdict verdict : kVerdicts) {
      text.Sample({{"run", live.run.display_name}, {"verdict", std::string(VerdictName(verdict))}},
                  live.verdict == verdict ? 1 : 0);
    }
  }
}

}  // namespace neuraldbg
