#include "daemon/app/http_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace neuraldbg {

absl::StatusOr<HttpAddress> HttpAddress::Hold(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (code != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--http ", address, " is no address: ", ::gai_strerror(code), "."));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  const int descriptor = ::socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (descriptor >= 0) ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (descriptor < 0 || ::bind(descriptor, found->ai_addr, found->ai_addrlen) != 0) {
    const std::string reason = std::strerror(errno);
    if (descriptor >= 0) ::close(descriptor);
    return absl::UnavailableError(absl::StrCat("The HTTP address ", address, " cannot be used: ", reason, "."));
  }
  return HttpAddress(descriptor);
}

HttpAddress::HttpAddress(HttpAddress&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

HttpAddress::~HttpAddress() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace neuraldbg
