#include "daemon/app/endpoint_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace neuraldbg {

absl::Status EndpointFile::Write(const std::vector<std::string>& grpc_addresses, const std::string& http_address) {
  nlohmann::json endpoint = {{"pid", ::getpid()}, {"grpc", grpc_addresses}, {"version", NEURALDBG_VERSION}};
  endpoint["http"] = http_address.empty() ? nlohmann::json() : nlohmann::json(http_address);
  const std::string text = endpoint.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::string temporary = path_ + ".new";
  ::unlink(temporary.c_str());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  bool ok = file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (file >= 0) ok = ::close(file) == 0 && ok;
  if (!ok || std::rename(temporary.c_str(), path_.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat(path_, " cannot be written: ", std::strerror(errno), "."));
  }
  written_ = true;
  return absl::OkStatus();
}

void EndpointFile::Remove() {
  if (written_) ::unlink(path_.c_str());
  written_ = false;
}

}  // namespace neuraldbg
