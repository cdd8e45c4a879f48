#include "daemon/cli/surroundings.h"

#include <cstdlib>
#include <string>

#include "daemon/app/config.h"

namespace neuraldbg {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void ApplySurroundings(Arguments& arguments) {
  const Surroundings surroundings = Surroundings::OfThisProcess();
  if (arguments.address.empty()) arguments.address = Environment("NEURALDBG_ADDRESS");
  if (arguments.address.empty()) {
    arguments.address = "unix:" + RuntimeDirectory(surroundings) + "/neuraldbgd.sock";
  }
  if (arguments.data_directory.empty()) arguments.data_directory = Environment("NEURALDBG_DATA_DIR");
  if (arguments.data_directory.empty()) arguments.data_directory = DefaultDataDirectory(surroundings);
  if (arguments.token_file.empty()) arguments.token_file = Environment("NEURALDBG_TOKEN_FILE");
}

}  // namespace neuraldbg
