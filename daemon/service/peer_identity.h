// Who is at the other end of a connection. Implements the access rules of docs/security-model.md.
//
// A unix socket is 0600, so whoever got through it is the daemon's user or root. Loopback TCP is shared by all users of
// the host, and carries no credentials: the kernel's table of TCP sockets (/proc/net/tcp, tcp6) tells which user owns
// the socket that the connection comes from. Anyone else needs the token.
//
// Nothing is cached: a port may belong to another user one moment later. Pure apart from reading the tables;
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/service/caller.h"

namespace neuraldbg {

struct PeerPolicy {
  std::uint32_t daemon_uid = 0;
  std::vector<std::uint32_t> allowed_uids;
  std::string token;                     // empty: no token is accepted
  std::vector<std::uint16_t> tcp_ports;  // ports the server listens on
  std::string in_process_key;            // proves that a call comes from this process; empty: none does
  std::string proc_net = "/proc/net";
};

// What a call brings along.
struct PeerClaim {
  std::string peer;            // as gRPC names it: "unix:", "ipv4:127.0.0.1:40000", "ipv6:[::1]:40000"
  std::string authorization;   // metadata `authorization`
  std::string in_process_key;  // metadata `x-neuraldbg-in-process`
  std::string uid;             // metadata `x-neuraldbg-uid`, believed only together with the key
};

// 128 random bits in hexadecimal.
std::string MakeInProcessKey();

// UNAUTHENTICATED with one sentence for anyone who is not let in.
absl::StatusOr<Caller> IdentifyPeer(const PeerPolicy& policy, const PeerClaim& claim);

// The user whose established socket has this address ("ipv4:…" or "ipv6:…") and is connected to one of `server_ports`.
// Nothing if there is none, or if several users have one.
std::optional<std::uint32_t> UidOfTcpPeer(const std::string& peer, const std::vector<std::uint16_t>& server_ports,
                                          const std::string& proc_net = "/proc/net");

// First line of a token file. FAILED_PRECONDITION if other users can read the file or if the token is shorter than 16
// characters.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

}  // namespace neuraldbg
