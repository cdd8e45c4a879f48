#include "daemon/cli/surroundings.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/app/config.h"
#include "daemon/service/listen_address.h"

namespace neuraldbg {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// gRPC would take any text for a host name and say only that nobody answers there.
absl::Status CheckAddress(const std::string& address, const char* given_by) {
  const absl::StatusOr<ListenAddress> parsed = ParseListenAddress(address);
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat(given_by, ": ", parsed.status().message()));
  if (parsed->is_unix() || parsed->port != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(given_by, ": '", address, "' needs a port from 1 to 65535."));
}

}  // namespace

absl::Status ApplySurroundings(Arguments& arguments) {
  const Surroundings surroundings = Surroundings::OfThisProcess();
  const char* given_by = arguments.address.empty() ? "NEURALDBG_ADDRESS" : "--address";
  if (arguments.address.empty()) arguments.address = Environment("NEURALDBG_ADDRESS");
  if (arguments.address.empty()) {
    arguments.address = "unix:" + RuntimeDirectory(surroundings) + "/neuraldbgd.sock";
  }
  if (arguments.data_directory.empty()) arguments.data_directory = Environment("NEURALDBG_DATA_DIR");
  if (arguments.data_directory.empty()) arguments.data_directory = DefaultDataDirectory(surroundings);
  if (arguments.token_file.empty()) arguments.token_file = Environment("NEURALDBG_TOKEN_FILE");
  return CheckAddress(arguments.address, given_by);
}

}  // namespace neuraldbg
