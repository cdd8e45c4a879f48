// An address to listen on: "unix:/absolute/path" or "HOST:PORT". Parsing is pure; PrepareUnixSocket touches the disk.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace neuraldbg {

struct ListenAddress {
  std::string text;       // as given
  std::string unix_path;  // empty for TCP
  std::string host;       // without brackets
  std::uint16_t port = 0;
  bool loopback = false;  // reachable from this host only

  bool is_unix() const { return !unix_path.empty(); }
};

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

// INVALID_ARGUMENT where other hosts could reach the address and no token keeps them out.
absl::Status CheckReachable(const ListenAddress& address, bool has_token);

// Makes the place for a socket: creates missing directories (0700), removes a socket that nobody answers on.
// ALREADY_EXISTS if somebody does.
absl::Status PrepareUnixSocket(const std::string& path);

}  // namespace neuraldbg
