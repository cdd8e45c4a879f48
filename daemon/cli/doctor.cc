// doctor: everything that must be in place for a run to be observed, checked one by one.
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/cli/surroundings.h"
#include "daemon/cli/verbs.h"
#include "nlohmann/json.hpp"

namespace neuraldbg {
namespace {

// A rank of a large model takes a few MiB of ring; less than this and the first big job fails (containers start with
// 64 MiB of /dev/shm).
constexpr std::uint64_t kSharedMemoryFreeMin = 64ull << 20;

enum class Finding { kOk, kWarning, kFailure };

struct Check {
  std::string what;
  Finding finding = Finding::kOk;
  std::string text;
};

const char* FindingName(Finding finding) {
  switch (finding) {
    case Finding::kOk:
      return "ok";
    case Finding::kWarning:
      return "warning";
    case Finding::kFailure:
      return "failure";
  }
  return "";
}

Check CheckSharedMemory() {
  const char* configured = std::getenv("NEURALDBG_SHM_DIR");
  const std::string directory = configured != nullptr && *configured != '\0' ? configured : "/dev/shm";
  struct statvfs space{};
  if (statvfs(directory.c_str(), &space) != 0) {
    return {"shared memory", Finding::kFailure, absl::StrCat(directory, " is not there; set NEURALDBG_SHM_DIR")};
  }
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    return {"shared memory", Finding::kFailure, absl::StrCat(directory, " is not writable for this user")};
  }
  const std::uint64_t free_bytes = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  const std::string text = absl::StrFormat("%s has %d MiB free", directory, free_bytes >> 20);
  if (free_bytes >= kSharedMemoryFreeMin) return {"shared memory", Finding::kOk, text};
  return {"shared memory", Finding::kWarning, absl::StrCat(text, "; large jobs need more (docker: --shm-size)")};
}

Check CheckSocketDirectory(const std::string& address) {
  const std::string prefix = "unix:";
  if (!address.starts_with(prefix)) return {"socket", Finding::kOk, absl::StrCat(address, " is a TCP address")};
  const std::string path = address.substr(prefix.size());
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) {
    return {"socket", Finding::kWarning, absl::StrCat(path, " is not there: no daemon has been started")};
  }
  if (!S_ISSOCK(status.st_mode)) return {"socket", Finding::kFailure, absl::StrCat(path, " is not a socket")};
  if (status.st_uid != geteuid() && geteuid() != 0) {
    return {"socket", Finding::kFailure, absl::StrCat(path, " belongs to user ", status.st_uid)};
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return {"socket", Finding::kWarning, absl::StrCat(path, " is open to other users")};
  }
  return {"socket", Finding::kOk, path};
}

Check CheckDaemon(const DaemonAddress& address) {
  absl::StatusOr<std::unique_ptr<Source>> daemon = ConnectToDaemon(address, kConnectPatience);
  if (!daemon.ok()) return {"daemon", Finding::kFailure, std::string(daemon.status().message())};
  const absl::StatusOr<v1::ListRunsResponse> runs = (*daemon)->ListRuns(v1::ListRunsRequest());
  if (!runs.ok()) return {"daemon", Finding::kFailure, std::string(runs.status().message())};
  return {"daemon", Finding::kOk, absl::StrCat("answers at ", address.target, ", ", runs->runs_size(), " runs")};
}

Check CheckStore(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<Source>> stored = OpenStoredRuns(directory);
  if (!stored.ok()) {
    const bool missing = access(directory.c_str(), F_OK) != 0;
    return {"store", missing ? Finding::kWarning : Finding::kFailure, std::string(stored.status().message())};
  }
  const absl::StatusOr<v1::ListRunsResponse> runs = (*stored)->ListRuns(v1::ListRunsRequest());
  if (!runs.ok()) return {"store", Finding::kFailure, std::string(runs.status().message())};
  return {"store", Finding::kOk, absl::StrCat(directory, ", ", runs->runs_size(), " runs")};
}

}  // namespace

ExitCode RunDoctor(const Arguments& arguments, Output& output) {
  const DaemonAddress address{arguments.address, arguments.token_file};
  const std::vector<Check> checks = {CheckSharedMemory(), CheckSocketDirectory(address.target), CheckDaemon(address),
                                     CheckStore(arguments.data_directory)};
  Table table({{"CHECK"}, {"RESULT"}, {"WHAT WAS FOUND"}});
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  bool failed = false;
  for (const Check& check : checks) {
    failed = failed || check.finding == Finding::kFailure;
    table.AddRow({check.what, FindingName(check.finding), check.text});
    list.push_back({{"check", check.what}, {"result", FindingName(check.finding)}, {"text", check.text}});
    if (output.format() == OutputFormat::kJsonl) output.Write(list.back().dump() + "\n");
  }
  if (output.format() == OutputFormat::kTable) output.WriteTable(table);
  if (output.format() == OutputFormat::kJson) {
    output.Write(nlohmann::ordered_json{{"checks", list}}.dump(2) + "\n");
  }
  return failed ? kExitFault : kExitSuccess;
}

}  // namespace neuraldbg
