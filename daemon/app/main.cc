// neuraldbgd. Exit codes: 0 ended in order, 1 could not start or go on, 2 wrong usage or configuration.
#include <signal.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "daemon/app/config.h"
#include "daemon/app/daemon.h"
#include "daemon/app/log.h"

namespace neuraldbg {
namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "neuraldbgd: %s\n", std::string(status.message()).c_str());
  return code;
}

// Before any thread exists, so that all inherit it: the main thread alone takes the ending signals.
void BlockSignals() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ending, number);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

int Main(int argc, char** argv) {
  BlockSignals();
  const absl::StatusOr<CommandLine> line =
      ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc), Surroundings::OfThisProcess());
  if (!line.ok()) return Fail(line.status(), 2);
  if (line->print || line->check_only) {
    std::fputs((line->print ? *line->print : ToToml(line->config)).c_str(), stdout);
    return 0;
  }
  SetUpLogging(line->config.log_level);
  if (const absl::Status status = RunDaemon(line->config); !status.ok()) return Fail(status, 1);
  return 0;
}

}  // namespace
}  // namespace neuraldbg

int main(int argc, char** argv) {
  try {
    return neuraldbg::Main(argc, argv);
  } catch (const std::exception& error) {  // out of memory and the like: segments survive, a restart goes on
    std::fprintf(stderr, "neuraldbgd: %s\n", error.what());
    return 1;
  }
}
