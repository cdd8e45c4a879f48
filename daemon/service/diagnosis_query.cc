#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/service/convert.h"
#include "daemon/service/query.h"
#include "daemon/service/run_topology.h"

namespace neuraldbg {
namespace {

// The last step of the rank that went into the diagnosis; nothing if none did.
std::optional<std::uint64_t> Through(const Diagnosis& diagnosis, std::uint32_t rank) {
  for (std::size_t i = 0; i < std::min(diagnosis.ranks_seen.size(), diagnosis.through_steps.size()); ++i) {
    if (diagnosis.ranks_seen[i] == rank && diagnosis.steps_seen > 0) return diagnosis.through_steps[i];
  }
  return std::nullopt;
}

struct Coverage {
  bool consumed = false;
  bool more_to_come = true;
};

// The diagnosis itself says what it covers: what the rank's row says may be newer. A rank that ended will not consume
// more (its last diagnosis is stored together with its end): waiting for it would only end by the caller's patience.
Coverage CoverageOf(const Diagnosis& diagnosis, const RunTopology& topology, const v1::DiagnoseRequest& request) {
  if (!request.has_wait_step()) return {.consumed = true, .more_to_come = false};
  bool any = false, all = true, running = false;
  for (const StoredRank& rank : topology.ranks()) {
    if (request.has_wait_rank() && rank.key.rank != request.wait_rank()) continue;
    if (topology.Newest(rank.key.rank)->key != rank.key) continue;  // superseded by a restart
    any = true;
    const std::optional<std::uint64_t> through = Through(diagnosis, rank.key.rank);
    const bool reached = through && *through >= request.wait_step();
    all = all && reached;
    running = running || (!reached && rank.state == RankState::kRunning);
  }
  return {.consumed = any && all, .more_to_come = running || !any};
}

// Of no kind of fault: like a place that does not report, it is about what is not known.
void AddNotices(Warnings warnings, const StoredRun& run, v1::Diagnosis& diagnosis) {
  for (const DaemonWarning& warning : warnings) {
    if (warning.kind != DaemonWarning::Kind::kNotStoring) continue;
    v1::Notice* notice = diagnosis.add_notices();
    notice->set_kind(v1::Hypothesis::BLIND_SPOT);
    notice->set_rank(-1);
    notice->set_step(ToStep(run.last_step));
    notice->set_text(absl::StrCat(warning.text, " This answer ends there. ", warning.remedy));
  }
}

absl::StatusOr<Diagnosis> StoredDiagnosisOf(StoreReader& reader, const StoredRun& run) {
  absl::StatusOr<Diagnosis> diagnosis = reader.GetDiagnosis(run.id);
  if (absl::IsNotFound(diagnosis.status())) return Diagnosis{};
  return diagnosis;
}

}  // namespace

absl::StatusOr<v1::Diagnosis> DiagnosisOf(StoreReader& reader, const StoredRun& run) {
  absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, run);
  if (!topology.ok()) return topology.status();
  const absl::StatusOr<Diagnosis> diagnosis = StoredDiagnosisOf(reader, run);
  if (!diagnosis.ok()) return diagnosis.status();
  return ToProto(*diagnosis, run, *topology);
}

absl::StatusOr<v1::DiagnoseResponse> DiagnoseSoFar(StoreReader& reader, const Caller& caller,
                                                   const v1::DiagnoseRequest& request, Warnings warnings,
                                                   bool& more_to_come) {
  if (request.has_wait_rank() && !request.has_wait_step()) {
    return absl::InvalidArgumentError("wait_rank: means nothing without wait_step.");
  }
  const absl::StatusOr<StoredRun> run = ResolveRun(reader, caller, request.run());
  if (!run.ok()) return run.status();
  // Before the diagnosis is read: if a rank has ended by now, its last diagnosis is stored.
  absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, *run);
  if (!topology.ok()) return topology.status();
  const absl::StatusOr<Diagnosis> diagnosis = StoredDiagnosisOf(reader, *run);
  if (!diagnosis.ok()) return diagnosis.status();
  v1::DiagnoseResponse response;
  const Coverage coverage = CoverageOf(*diagnosis, *topology, request);
  response.set_step_consumed(coverage.consumed);
  more_to_come = coverage.more_to_come && run->state == RunState::kRunning;  // or the rank asked for never was
  *response.mutable_diagnosis() = ToProto(*diagnosis, *run, *topology);
  if (request.has_wait_step()) response.mutable_diagnosis()->set_step_consumed(response.step_consumed());
  if (run->state == RunState::kRunning || request.run().empty()) {
    AddNotices(warnings, *run, *response.mutable_diagnosis());
  }
  return response;
}

absl::StatusOr<v1::DiagnoseResponse> Diagnose(StoreReader& reader, const Caller& caller,
                                              const v1::DiagnoseRequest& request, Warnings warnings) {
  bool more_to_come = false;
  return DiagnoseSoFar(reader, caller, request, warnings, more_to_come);
}

absl::StatusOr<v1::GetCausalGraphResponse> GetCausalGraph(StoreReader& reader, const Caller& caller,
                                                          const v1::GetCausalGraphRequest& request) {
  const absl::StatusOr<StoredRun> run = ResolveRun(reader, caller, request.run());
  if (!run.ok()) return run.status();
  absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, *run);
  if (!topology.ok()) return topology.status();
  if (request.has_rank() && !topology->HasRank(request.rank())) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: run '", run->display_name, "' has no rank ", request.rank(), "."));
  }
  v1::GetCausalGraphResponse response;
  const StoredRank* rank = topology->Newest(request.has_rank() ? static_cast<std::int64_t>(request.rank()) : -1);
  if (rank != nullptr) {
    *response.mutable_graph() = ToProto(topology->Of(rank->key), *run);
  } else {
    response.mutable_graph()->set_run(run->display_name);
  }
  return response;
}

}  // namespace neuraldbg
