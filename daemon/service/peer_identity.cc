#include "daemon/service/peer_identity.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace neuraldbg {
namespace {

// An IPv6 address in network order; IPv4 is mapped into it, because a dual-stack socket shows up in tcp6 while gRPC
// names its peer by the IPv4 address.
using Address = std::array<std::uint8_t, 16>;

struct Endpoint {
  Address address{};
  std::uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};

Address MapIpv4(const std::uint8_t (&bytes)[4]) {
  Address address{};
  address[10] = address[11] = 0xff;
  std::copy(std::begin(bytes), std::end(bytes), address.begin() + 12);
  return address;
}

// "ipv4:127.0.0.1:40000", "ipv6:[::1]:40000" (gRPC may send the brackets percent-encoded).
std::optional<Endpoint> ParsePeer(const std::string& peer) {
  const std::string plain = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const std::size_t scheme = plain.find(':'), port_mark = plain.rfind(':');
  std::uint32_t port = 0;
  if (scheme == std::string::npos || port_mark <= scheme) return std::nullopt;
  if (!absl::SimpleAtoi(plain.substr(port_mark + 1), &port) || port > 0xffff) return std::nullopt;
  const std::string host = plain.substr(scheme + 1, port_mark - scheme - 1);
  Endpoint endpoint;
  endpoint.port = static_cast<std::uint16_t>(port);
  if (plain.starts_with("ipv4:")) {
    std::uint8_t bytes[4];
    if (inet_pton(AF_INET, host.c_str(), bytes) != 1) return std::nullopt;
    endpoint.address = MapIpv4(bytes);
    return endpoint;
  }
  if (!plain.starts_with("ipv6:") || host.size() < 2) return std::nullopt;
  const std::string inside = host.substr(1, host.size() - 2);
  const std::string without_zone = inside.substr(0, inside.find('%'));
  if (inet_pton(AF_INET6, without_zone.c_str(), endpoint.address.data()) != 1) return std::nullopt;
  return endpoint;
}

// "0100007F:1D09": the address as 32-bit words in host order, the port in hexadecimal.
std::optional<Endpoint> ParseTableEndpoint(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return std::nullopt;
  std::array<std::uint8_t, 16> bytes{};
  for (std::size_t word = 0; word < colon / 8; ++word) {
    std::uint32_t value = 0;
    if (!absl::SimpleHexAtoi(text.substr(8 * word, 8), &value)) return std::nullopt;
    std::memcpy(bytes.data() + 4 * word, &value, sizeof value);
  }
  std::uint32_t port = 0;
  if (!absl::SimpleHexAtoi(text.substr(colon + 1), &port)) return std::nullopt;
  Endpoint endpoint;
  endpoint.port = static_cast<std::uint16_t>(port);
  if (colon == 32) {
    endpoint.address = bytes;
  } else {
    const std::uint8_t ipv4[4] = {bytes[0], bytes[1], bytes[2], bytes[3]};
    endpoint.address = MapIpv4(ipv4);
  }
  return endpoint;
}

struct TableRow {
  Endpoint local, remote;
  std::uint32_t uid = 0;
};

// One line of /proc/net/tcp. Only established sockets that a process holds count: a socket that was closed stays in
// the table as TIME_WAIT or FIN_WAIT with uid 0 and inode 0, which would make everybody root.
std::optional<TableRow> ParseTableRow(const std::string& line) {
  std::istringstream fields(line);
  std::string slot, local, remote, state, queues, timer, retransmits, timeout;
  std::uint64_t inode = 0;
  TableRow row;
  fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> row.uid >> timeout >> inode;
  constexpr const char* kEstablished = "01";
  if (!fields || state != kEstablished || inode == 0) return std::nullopt;
  const std::optional<Endpoint> local_end = ParseTableEndpoint(local), remote_end = ParseTableEndpoint(remote);
  if (!local_end || !remote_end) return std::nullopt;
  row.local = *local_end;
  row.remote = *remote_end;
  return row;
}

// In constant time, so that a secret cannot be guessed byte by byte. An empty secret matches nothing.
bool SameSecret(const std::string& secret, const std::string& given) {
  return !secret.empty() && given.size() == secret.size() &&
         CRYPTO_memcmp(given.data(), secret.data(), secret.size()) == 0;
}

bool TokenMatches(const std::string& token, const std::string& authorization) {
  const std::string bearer = "Bearer ";
  return absl::StartsWith(authorization, bearer) && SameSecret(token, authorization.substr(bearer.size()));
}

Caller CallerOf(const PeerPolicy& policy, std::uint32_t uid) { return {uid, uid == policy.daemon_uid || uid == 0}; }

bool MayConnect(const PeerPolicy& policy, std::uint32_t uid) {
  return uid == policy.daemon_uid || uid == 0 ||
         std::find(policy.allowed_uids.begin(), policy.allowed_uids.end(), uid) != policy.allowed_uids.end();
}

}  // namespace

std::optional<std::uint32_t> UidOfTcpPeer(const std::string& peer, const std::vector<std::uint16_t>& server_ports,
                                          const std::string& proc_net) {
  const std::optional<Endpoint> wanted = ParsePeer(peer);
  if (!wanted) return std::nullopt;
  std::optional<std::uint32_t> uid;
  for (const char* table : {"/tcp", "/tcp6"}) {
    std::ifstream file(proc_net + table);
    for (std::string line; std::getline(file, line);) {
      const std::optional<TableRow> row = ParseTableRow(line);
      if (!row || row->local != *wanted) continue;
      if (std::find(server_ports.begin(), server_ports.end(), row->remote.port) == server_ports.end()) continue;
      if (uid && *uid != row->uid) return std::nullopt;
      uid = row->uid;
    }
  }
  return uid;
}

absl::StatusOr<Caller> IdentifyPeer(const PeerPolicy& policy, const PeerClaim& claim) {
  // Before the transport: gRPC names the in-process transport differently from release to release.
  if (SameSecret(policy.in_process_key, claim.in_process_key)) {
    std::uint32_t uid = 0;
    if (absl::SimpleAtoi(claim.uid, &uid)) return CallerOf(policy, uid);
    return absl::UnauthenticatedError("A call from within the daemon needs the metadata key x-neuraldbg-uid.");
  }
  if (absl::StartsWith(claim.peer, "unix:")) return CallerOf(policy, policy.daemon_uid);
  if (TokenMatches(policy.token, claim.authorization)) return CallerOf(policy, policy.daemon_uid);
  const std::optional<std::uint32_t> uid = UidOfTcpPeer(claim.peer, policy.tcp_ports, policy.proc_net);
  if (uid && MayConnect(policy, *uid)) return CallerOf(policy, *uid);
  return absl::UnauthenticatedError(
      uid ? absl::StrCat("User ", *uid, " may not use the neuraldbgd of user ", policy.daemon_uid,
                         ": be added to allowed_uids, or send its token as `authorization: Bearer TOKEN`.")
          : std::string("This connection comes from no known user of this host: send the daemon's token as "
                        "`authorization: Bearer TOKEN`."));
}

std::string MakeInProcessKey() {
  std::array<std::uint8_t, 16> bytes{};
  if (getentropy(bytes.data(), bytes.size()) != 0) return "";  // then no call is believed to be in-process
  std::string key;
  for (const std::uint8_t byte : bytes) absl::StrAppend(&key, absl::Hex(byte, absl::kZeroPad2));
  return key;
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  constexpr std::size_t kTokenLengthMin = 16;  // 96 bits in base64: not guessable over a network
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("Cannot read the token file ", path, "."));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("The token file ", path, " must be readable by its owner only (chmod 600)."));
  }
  std::ifstream file(path);
  std::string token;
  std::getline(file, token);
  while (!token.empty() && std::isspace(static_cast<unsigned char>(token.back())) != 0) token.pop_back();
  if (token.size() < kTokenLengthMin) {
    return absl::FailedPreconditionError(
        absl::StrCat("The token in ", path, " is shorter than ", kTokenLengthMin, " characters."));
  }
  return token;
}

}  // namespace neuraldbg
