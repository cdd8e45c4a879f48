// The daemon's HTTP port: connections, access, limits; routes are put on it by the composition root.
//
// Threads: Listen, Route, Serve and Stop are called from one thread. Connections and handlers live on one thread of the
// server's own, which shares nothing with the ingest thread, so no client can slow ingest down; a handler that is slow
// slows other HTTP clients only.
//
// Invariants: a handler runs only for a request that passed the checks of docs/security-model.md (Host, Origin, the
// peer's user or the token); connections, and what each may make the server keep, are bounded.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/http/http_message.h"

namespace neuraldbg {

struct HttpServerOptions {
  std::string address;            // HOST:PORT; port 0 lets the kernel choose
  std::uint16_t ports_tried = 1;  // so many, upwards from PORT, until one is free
  std::uint32_t daemon_uid = 0;   // as ServerOptions of daemon/service/server.h
  std::vector<std::uint32_t> allowed_uids;
  std::string token_file;
  // A browser opens 6 per host, a scraper 1; each costs a descriptor of the usual 1024 and at most 48 KiB.
  std::size_t connections_max = 64;
  // Of these, for peers that are not known by their user and may or may not have the token: so that somebody who may
  // not ask cannot take the places of those who may.
  std::size_t strangers_max = 16;
  // A request must be there, and an answer be taken, within this time: a client that is slower is cut off, and so is
  // an idle connection.
  std::chrono::milliseconds patience{30'000};
};

class HttpServer {
 public:
  // Binds. The message of an error is one sentence for the user and names the address.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(HttpServerOptions options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // As clients dial it, with the port that was bound.
  const std::string& address() const;

  // Before Serve. `path` is matched whole.
  void Route(std::string path, HttpHandler handler);
  void Serve();
  // Closes the port and every connection. No handler runs once it returns. Idempotent; the destructor calls it.
  void Stop();

  struct Impl;

 private:
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace neuraldbg
