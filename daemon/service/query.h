// The questions of neuraldbg.v1, answered from a store: everything the services do except transport.
//
// Free functions without state, so that the gRPC services and a neuraldbgctl that finds no daemon give the same answer
// from the same code. Thread-safety is that of the reader passed in. Codes: NOT_FOUND for a run that does not exist or
// that the caller may not see (the two cannot be told apart), INVALID_ARGUMENT with the name of the field, otherwise
// what the store reports.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/model/daemon_warnings.h"
#include "daemon/service/caller.h"
#include "daemon/store/store.h"
#include "neuraldbg/v1/diagnosis.pb.h"
#include "neuraldbg/v1/diagnosis_service.pb.h"
#include "neuraldbg/v1/event_service.pb.h"
#include "neuraldbg/v1/run_service.pb.h"
#include "neuraldbg/v1/series_service.pb.h"

namespace neuraldbg {

// `name`: display name, or plain name for its newest launch; empty: the newest run that the caller sees.
absl::StatusOr<StoredRun> ResolveRun(StoreReader& reader, const Caller& caller, const std::string& name);

// What a query cannot read from the store: `warnings` are the daemon's own, none where there is no daemon.
using Warnings = std::span<const DaemonWarning>;

absl::StatusOr<v1::ListRunsResponse> ListRuns(StoreReader& reader, const Caller& caller,
                                              const v1::ListRunsRequest& request, Warnings warnings = {});
absl::StatusOr<v1::GetRunResponse> GetRun(StoreReader& reader, const Caller& caller, const v1::GetRunRequest& request);
absl::StatusOr<v1::ListRanksResponse> ListRanks(StoreReader& reader, const Caller& caller,
                                                const v1::ListRanksRequest& request);
absl::StatusOr<v1::ListSitesResponse> ListSites(StoreReader& reader, const Caller& caller,
                                                const v1::ListSitesRequest& request);

absl::StatusOr<v1::QuerySeriesResponse> QuerySeries(StoreReader& reader, const Caller& caller,
                                                    const v1::QuerySeriesRequest& request);
absl::StatusOr<v1::HeatmapResponse> Heatmap(StoreReader& reader, const Caller& caller,
                                            const v1::HeatmapRequest& request);

absl::StatusOr<v1::ListEventsResponse> ListEvents(StoreReader& reader, const Caller& caller,
                                                  const v1::ListEventsRequest& request);

// Does not wait: `wait_step` is the business of the service. step_consumed is set as of now; where it is false,
// `more_to_come` says whether waiting may help (a rank that has ended consumes no more). That nothing is stored is
// a notice where newer steps may be missing: of a run that goes on, and where the newest run is asked for, which may
// not be stored at all.
absl::StatusOr<v1::DiagnoseResponse> Diagnose(StoreReader& reader, const Caller& caller,
                                              const v1::DiagnoseRequest& request, Warnings warnings = {});
// The same, for somebody who waits.
absl::StatusOr<v1::DiagnoseResponse> DiagnoseSoFar(StoreReader& reader, const Caller& caller,
                                                   const v1::DiagnoseRequest& request, Warnings warnings,
                                                   bool& more_to_come);
absl::StatusOr<v1::GetCausalGraphResponse> GetCausalGraph(StoreReader& reader, const Caller& caller,
                                                          const v1::GetCausalGraphRequest& request);

// The diagnosis of one stored run; a run without one yet is INCOMPLETE_DATA, not an error.
absl::StatusOr<v1::Diagnosis> DiagnosisOf(StoreReader& reader, const StoredRun& run);

}  // namespace neuraldbg
