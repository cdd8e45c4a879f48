// A request as a route sees it, and its answer. The server has checked everything about the connection before.
#pragma once

#include <functional>
#include <string>

#include "daemon/service/caller.h"

namespace neuraldbg {

struct HttpRequest {
  std::string path;   // "/metrics"
  std::string query;  // what stands behind the '?', undecoded
  Caller caller;
};

struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Called on the thread of the server, which serves nobody else meanwhile: it may read the store, and must wait for
// nothing.
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

}  // namespace neuraldbg
