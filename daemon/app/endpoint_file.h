// `<data>/endpoint.json` (0600): where the daemon of this data directory listens, for clients that were told nothing
// else.
//
// Owner: the daemon's main thread; written once all addresses are bound, replaced atomically, removed at an orderly
// end.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace neuraldbg {

class EndpointFile {
 public:
  explicit EndpointFile(const std::string& data_directory) : path_(data_directory + "/endpoint.json") {}
  ~EndpointFile() { Remove(); }
  EndpointFile(const EndpointFile&) = delete;
  EndpointFile& operator=(const EndpointFile&) = delete;

  // `http_address`: empty where no HTTP is served.
  absl::Status Write(const std::vector<std::string>& grpc_addresses, const std::string& http_address);
  void Remove();

 private:
  std::string path_;
  bool written_ = false;
};

}  // namespace neuraldbg
