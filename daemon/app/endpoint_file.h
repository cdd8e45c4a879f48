// `<data>/endpoint.json` (0600): where the daemon of this data directory listens, for clients that were told nothing
// else, and what its user has to know although no run shows it.
//
// Owner: the daemon; written once all addresses are bound, replaced atomically, removed at an orderly end. Used by one
// thread at a time: the main thread until ingest starts and after it has ended, the ingest thread in between.
#pragma once

#include <cstddef>
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

  absl::Status Write(const std::vector<std::string>& grpc_addresses);
  // Adds a sentence to `warnings`; the first kWarningsMax are kept.
  absl::Status AddWarning(const std::string& sentence);
  void Remove();

 private:
  static constexpr std::size_t kWarningsMax = 16;
  absl::Status Replace() const;

  std::string path_;
  std::vector<std::string> grpc_addresses_, warnings_;
  bool written_ = false;
};

}  // namespace neuraldbg
