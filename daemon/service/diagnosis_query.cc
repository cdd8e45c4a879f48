#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/service/convert.h"
#include "daemon/service/query.h"
#include "daemon/service/run_topology.h"

namespace neuraldbg {
namespace {

// A rank that ended will not consume more: waiting for it would only end by the caller's patience.
bool StepConsumed(const StoredRun& run, const RunTopology& topology, const v1::DiagnoseRequest& request) {
  if (!request.has_wait_step()) return true;
  bool any = false;
  for (const StoredRank& rank : topology.ranks()) {
    if (request.has_wait_rank() && rank.key.rank != request.wait_rank()) continue;
    if (topology.Newest(rank.key.rank)->key != rank.key) continue;  // superseded by a restart
    any = true;
    const bool reached = run.steps_seen > 0 && rank.last_step >= request.wait_step();
    if (!reached && rank.state == RankState::kRunning) return false;
  }
  return any;
}

}  // namespace

absl::StatusOr<v1::Diagnosis> DiagnosisOf(StoreReader& reader, const StoredRun& run) {
  absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, run);
  if (!topology.ok()) return topology.status();
  const absl::StatusOr<Diagnosis> diagnosis = reader.GetDiagnosis(run.id);
  if (!diagnosis.ok() && !absl::IsNotFound(diagnosis.status())) return diagnosis.status();
  return ToProto(diagnosis.ok() ? *diagnosis : Diagnosis{}, run, *topology);
}

absl::StatusOr<v1::DiagnoseResponse> Diagnose(StoreReader& reader, const Caller& caller,
                                              const v1::DiagnoseRequest& request) {
  if (request.has_wait_rank() && !request.has_wait_step()) {
    return absl::InvalidArgumentError("wait_rank: means nothing without wait_step.");
  }
  const absl::StatusOr<StoredRun> run = ResolveRun(reader, caller, request.run());
  if (!run.ok()) return run.status();
  // Before the diagnosis is read: what is consumed now is then certainly in it.
  const absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, *run);
  if (!topology.ok()) return topology.status();
  v1::DiagnoseResponse response;
  response.set_step_consumed(StepConsumed(*run, *topology, request));
  absl::StatusOr<v1::Diagnosis> diagnosis = DiagnosisOf(reader, *run);
  if (!diagnosis.ok()) return diagnosis.status();
  *response.mutable_diagnosis() = *std::move(diagnosis);
  return response;
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
