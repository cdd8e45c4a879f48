// Where answers come from: a daemon over gRPC, or, where none answers, the stored runs of the data directory through
// the same code that the daemon uses (daemon/service/query.h). Used by one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "neuraldbg/v1/diagnosis_service.pb.h"
#include "neuraldbg/v1/event_service.pb.h"
#include "neuraldbg/v1/run_service.pb.h"
#include "neuraldbg/v1/series_service.pb.h"

namespace neuraldbg {

// Service and method of every unary call that a verb makes.
#define NEURALDBG_UNARY_CALLS(X) \
  X(RunService, ListRuns)        \
  X(RunService, GetRun)          \
  X(RunService, ListRanks)       \
  X(RunService, ListSites)       \
  X(SeriesService, QuerySeries)  \
  X(EventService, ListEvents)    \
  X(DiagnosisService, Diagnose)  \
  X(DiagnosisService, GetCausalGraph)

class Source {
 public:
  virtual ~Source() = default;
  virtual bool live() const = 0;  // a daemon answers

#define X(service, method) virtual absl::StatusOr<v1::method##Response> method(const v1::method##Request& request) = 0;
  NEURALDBG_UNARY_CALLS(X)
#undef X

  // Calls `visit` for every event of the stream until it returns false or the stream ends. UNAVAILABLE where there is
  // no daemon.
  virtual absl::Status WatchEvents(const v1::WatchEventsRequest& request,
                                   const std::function<bool(const v1::Event&)>& visit) = 0;
};

struct DaemonAddress {
  std::string target;      // "unix:/path" or "HOST:PORT"
  std::string token_file;  // empty: none
};

// UNAVAILABLE, naming the address, if nobody answers within `patience`.
absl::StatusOr<std::unique_ptr<Source>> ConnectToDaemon(const DaemonAddress& address,
                                                        std::chrono::milliseconds patience);
// The stored runs of a data directory, read-only.
absl::StatusOr<std::unique_ptr<Source>> OpenStoredRuns(const std::string& data_directory);

}  // namespace neuraldbg
