#include "daemon/http/http_access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace neuraldbg {
namespace {

// "[::1]:7434" -> "::1", "LocalHost:7434" -> "localhost"; nothing if it is no host with an optional port.
std::optional<std::string> NameOf(std::string_view host) {
  std::string_view name = host, port;
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    name = host.substr(1, end - 1);
    port = host.substr(end + 1);
  } else if (const std::size_t colon = host.find(':'); colon != std::string_view::npos) {
    name = host.substr(0, colon);
    port = host.substr(colon);
  }
  const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  if (!port.empty() && (port[0] != ':' || !std::all_of(port.begin() + 1, port.end(), digit))) return std::nullopt;
  return absl::AsciiStrToLower(std::string(name));
}

// An address, never a name: 127.0.0.1.example.org belongs to somebody else.
bool IsLoopbackAddress(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  if (inet_pton(AF_INET, name.c_str(), bytes.data()) == 1) return bytes[0] == 127;
  if (inet_pton(AF_INET6, name.c_str(), bytes.data()) != 1) return false;
  return std::all_of(bytes.begin(), bytes.end() - 1, [](unsigned char b) { return b == 0; }) && bytes.back() == 1;
}

}  // namespace

absl::Status CheckHost(const std::string& host, const std::string& bound_host, const std::string& local_address) {
  const std::optional<std::string> name = NameOf(host);
  if (name && !name->empty() &&
      (*name == "localhost" || IsLoopbackAddress(*name) || *name == absl::AsciiStrToLower(bound_host) ||
       *name == local_address)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      "The Host header names another host than this one: use localhost, or the address that --http was given.");
}

absl::Status CheckOrigin(const std::string& origin, const std::string& host) {
  if (absl::AsciiStrToLower(origin) == absl::StrCat("http://", absl::AsciiStrToLower(host))) return absl::OkStatus();
  return absl::PermissionDeniedError("Pages of another origin may not ask here.");
}

}  // namespace neuraldbg
