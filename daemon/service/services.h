// The four services of neuraldbg.v1 as gRPC sees them, and what they share. Each lives in its own file, because the
// generated headers make every file that includes them slow to compile.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <chrono>
#include <latch>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/model/daemon_warnings.h"
#include "daemon/service/live_calls.h"
#include "daemon/service/peer_identity.h"
#include "daemon/service/reader_pool.h"
#include "daemon/service/server.h"

namespace neuraldbg {

// Owner: the server; outlives every call.
struct ServiceContext {
  ServiceContext(ServerOptions options, PeerPolicy peers)
      : policy(std::move(peers)),
        readers(std::move(options.open_reader), options.readers_max),
        feed(options.feed),
        warnings(options.warnings),
        live(options.feed, options.streams_max),
        stall_max(options.stall_max) {}

  PeerPolicy policy;  // complete once `listening` is down: the kernel may choose the ports
  std::latch listening{1};
  ReaderPool readers;
  EventFeed* feed = nullptr;
  const DaemonWarnings* warnings = nullptr;
  LiveCalls live;
  std::chrono::milliseconds stall_max;  // a stream whose reader takes nothing for so long is cut off

  std::vector<DaemonWarning> CurrentWarnings() const {
    return warnings == nullptr ? std::vector<DaemonWarning>() : warnings->Current();
  }
};

std::unique_ptr<grpc::Service> MakeRunService(ServiceContext& context);
std::unique_ptr<grpc::Service> MakeSeriesService(ServiceContext& context);
std::unique_ptr<grpc::Service> MakeEventService(ServiceContext& context);
std::unique_ptr<grpc::Service> MakeDiagnosisService(ServiceContext& context);

}  // namespace neuraldbg
