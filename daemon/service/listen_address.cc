#include "daemon/service/listen_address.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace neuraldbg {
namespace {

constexpr std::size_t kUnixPathMax = sizeof(sockaddr_un::sun_path) - 1;

bool SomebodyAnswers(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const bool answered = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return answered;
}

// Like mkdir -p, but every directory made here is for its owner only.
absl::Status MakePrivateDirectories(const std::filesystem::path& directory) {
  std::error_code error;
  if (directory.empty() || std::filesystem::is_directory(directory, error)) return absl::OkStatus();
  absl::Status parent = MakePrivateDirectories(directory.parent_path());
  if (!parent.ok()) return parent;
  if (mkdir(directory.c_str(), S_IRWXU) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Cannot create ", directory.string(), ": ", std::strerror(errno), "."));
}

}  // namespace

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text) {
  ListenAddress address;
  address.text = text;
  if (text.starts_with("unix:")) {
    address.unix_path = text.substr(std::strlen("unix:"));
    while (address.unix_path.starts_with("//")) address.unix_path.erase(0, 1);
    address.loopback = true;
    if (!address.unix_path.starts_with('/')) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "': the path of a unix socket must be absolute."));
    }
    if (address.unix_path.size() > kUnixPathMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "': the path of a unix socket may have ", kUnixPathMax, " characters."));
    }
    return address;
  }
  const std::size_t colon = text.rfind(':');
  std::uint32_t port = 0;
  const bool host = colon != std::string::npos && colon != 0 && text.find_first_of("/ ") == std::string::npos;
  if (!host || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 0xffff) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is neither unix:/PATH (an absolute path) nor HOST:PORT."));
  }
  address.port = static_cast<std::uint16_t>(port);
  address.host = text.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  address.loopback = address.host == "localhost" || address.host == "::1" || address.host.starts_with("127.");
  return address;
}

absl::Status CheckReachable(const ListenAddress& address, bool has_token) {
  if (address.loopback || has_token) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", address.text, "' can be reached from other hosts: set token_file."));
}

absl::Status PrepareUnixSocket(const std::string& path) {
  absl::Status made = MakePrivateDirectories(std::filesystem::path(path).parent_path());
  if (!made.ok()) return made;
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) return absl::OkStatus();
  if (!S_ISSOCK(status.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists and is not a socket."));
  }
  if (SomebodyAnswers(path)) return absl::AlreadyExistsError(absl::StrCat("Another daemon answers on ", path, "."));
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace neuraldbg
