// The gRPC server of the daemon: listeners, health, reflection and the four services of neuraldbg.v1.
//
// Owner: the composition root (daemon/app). Start, Drain and Shutdown are called from one thread; RPCs run on gRPC's
// own threads and touch nothing but StoreReaders of their own pool and the thread-safe EventFeed, so that no client can
// slow the ingest thread down.
//
// Invariants: a unix socket is never reachable for another user (0600, in a 0700 directory where the server had to
// create it); a TCP connection is served only after the check of daemon/service/peer_identity.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/store/store.h"

namespace grpc {
class Channel;
}

namespace neuraldbg {

class DaemonWarnings;
class EventFeed;

struct ServerOptions {
  // "unix:/absolute/path" or "HOST:PORT"; port 0 lets the kernel choose (see GrpcServer::addresses).
  std::vector<std::string> listen;
  // Opens one more read-only view of the store; called at most `readers_max` times, from any thread.
  std::function<absl::StatusOr<std::unique_ptr<StoreReader>>()> open_reader;
  // Tells waiting calls that something was committed; not owned, may be null (then they look again every 100 ms).
  EventFeed* feed = nullptr;
  const DaemonWarnings* warnings = nullptr;  // what to tell every caller; not owned, may be null
  std::uint32_t daemon_uid = 0;              // sees every run, like root; default of main is geteuid()
  std::vector<std::uint32_t> allowed_uids;   // further users that may connect over TCP; each sees its own runs
  std::string token_file;                    // empty: connections of unknown users are refused
  std::size_t readers_max = 4;
  std::size_t streams_max = 256;                // concurrent WatchEvents, WatchDiagnoses and waiting Diagnose calls
  std::chrono::milliseconds stall_max{60'000};  // a stream whose reader takes nothing for so long is cut off
};

class GrpcServer {
 public:
  // Binds all addresses or none. The message of an error is one sentence for the user and names the address.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(ServerOptions options);
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // The addresses as clients dial them, in the order of ServerOptions::listen, with the ports that were bound.
  const std::vector<std::string>& addresses() const;

  // Health answers NOT_SERVING from here on; calls still work. First step of an orderly end.
  void Drain();
  // Ends streams and waiting calls with UNAVAILABLE, gives the others until the deadline, unlinks unix sockets.
  // Idempotent; the destructor calls it with no patience.
  void Shutdown(std::chrono::milliseconds patience);

  // Calls without a socket, for the gRPC-web bridge. Such a call must carry the metadata `x-neuraldbg-in-process` (the
  // key, which never leaves this process) and `x-neuraldbg-uid` (the user on whose behalf it is made).
  std::shared_ptr<grpc::Channel> InProcessChannel();
  const std::string& in_process_key() const;
  // Streams and waiting calls open now.
  std::size_t active_calls() const;

  struct Impl;

 private:
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace neuraldbg
