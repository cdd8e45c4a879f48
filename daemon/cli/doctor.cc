// doctor: everything that must be in place for a run to be observed, checked one by one.
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/cli/surroundings.h"
#include "daemon/cli/tables.h"
#include "daemon/cli/verbs.h"
#include "nlohmann/json.hpp"

namespace neuraldbg {
namespace {

// A rank of a large model takes a few MiB of ring; less than this and the first big job fails (containers start with
// 64 MiB of /dev/shm).
constexpr std::uint64_t kSharedMemoryFreeMin = 64ull << 20;

enum class Finding { kOk, kWarning, kFailure };

// What is not well says what to do about it.
struct Check {
  std::string what;
  Finding finding = Finding::kOk;
  std::string text, remedy;
};

Check Ok(const char* what, std::string text) { return {what, Finding::kOk, std::move(text), ""}; }
Check Warning(const char* what, std::string text, std::string remedy) {
  return {what, Finding::kWarning, std::move(text), std::move(remedy)};
}
Check Failure(const char* what, std::string text, std::string remedy) {
  return {what, Finding::kFailure, std::move(text), std::move(remedy)};
}

constexpr const char* kStartDaemon = "Start neuraldbgd, or let a training job do it (attach with daemon=\"auto\").";

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
  constexpr const char* kWhat = "shared memory";
  const char* configured = std::getenv("NEURALDBG_SHM_DIR");
  const std::string directory = configured != nullptr && *configured != '\0' ? configured : "/dev/shm";
  struct statvfs space{};
  if (statvfs(directory.c_str(), &space) != 0) {
    return Failure(kWhat, absl::StrCat(directory, " is not there"),
                   "Set NEURALDBG_SHM_DIR, for jobs and daemon alike, to a directory on a tmpfs.");
  }
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    return Failure(kWhat, absl::StrCat(directory, " is not writable for this user"),
                   absl::StrCat("Make ", directory, " writable, or set NEURALDBG_SHM_DIR to a directory that is."));
  }
  const std::uint64_t free_bytes = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  const std::string text = absl::StrFormat("%s has %d MiB free", directory, free_bytes >> 20);
  if (free_bytes >= kSharedMemoryFreeMin) return Ok(kWhat, text);
  return Warning(kWhat, text, "Give it more room: large jobs need it (docker: --shm-size).");
}

Check CheckSocket(const std::string& address) {
  constexpr const char* kWhat = "socket";
  constexpr const char* kPrefix = "unix:";
  if (!address.starts_with(kPrefix)) return Ok(kWhat, absl::StrCat(address, " is a TCP address"));
  const std::string path = address.substr(std::strlen(kPrefix));
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) {
    return Warning(kWhat, absl::StrCat(path, " is not there: no daemon has been started"), kStartDaemon);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return Failure(kWhat, absl::StrCat(path, " is not a socket"),
                   absl::StrCat("Move ", path, " away, or set NEURALDBG_ADDRESS to another path."));
  }
  if (status.st_uid != geteuid() && geteuid() != 0) {
    return Failure(kWhat, absl::StrCat(path, " belongs to user ", status.st_uid),
                   "Set NEURALDBG_ADDRESS to the socket of a daemon of this user.");
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Warning(kWhat, absl::StrCat(path, " is open to other users"), absl::StrCat("chmod 600 ", path));
  }
  return Ok(kWhat, path);
}

std::string RemedyForAnswer(const absl::Status& status) {
  if (absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status)) {
    return "Name the daemon's token with --token-file or NEURALDBG_TOKEN_FILE, or ask as the user that runs it.";
  }
  return "See the daemon's log (neuraldbgd.log in the data directory, or what it prints); start it again.";
}

// Whether the newest run lost records.
void CheckRecords(Source& daemon, std::vector<Check>& checks) {
  constexpr const char* kWhat = "records";
  const absl::StatusOr<v1::ListRanksResponse> ranks = daemon.ListRanks(v1::ListRanksRequest());
  if (!ranks.ok()) return;  // no run yet; whatever else is wrong is found by the other checks
  double produced = 0, dropped = 0;
  std::vector<std::string> losing;
  for (const v1::Rank& rank : ranks->ranks()) {
    produced += rank.records_produced();
    dropped += rank.records_dropped();
    if (rank.records_dropped() > 0) losing.push_back(absl::StrCat(rank.rank()));
  }
  if (dropped == 0) {
    checks.push_back(Ok(kWhat, absl::StrFormat("none of the newest run's %.0f was dropped", produced)));
    return;
  }
  checks.push_back(
      Warning(kWhat,
              absl::StrFormat("the newest run dropped %.0f of its %.0f (rank %s): no daemon drained "
                              "its ring for a while, or somebody removed its file",
                              dropped, produced, absl::StrJoin(losing, ", ")),
              "Have neuraldbgd run before the job starts. If it did, the ring was too short for its pauses: it is made "
              "smaller where the shared memory directory is short of space (docker: --shm-size, or NEURALDBG_SHM_DIR "
              "for job and daemon)."));
}

// Whether it answers, and what it says is wrong itself.
std::vector<Check> CheckDaemon(const DaemonAddress& address) {
  constexpr const char* kWhat = "daemon";
  absl::StatusOr<std::unique_ptr<Source>> daemon = ConnectToDaemon(address, kConnectPatience);
  if (absl::IsInvalidArgument(daemon.status())) {
    return {
        Failure(kWhat, std::string(daemon.status().message()), "Give --token-file a file that this user can read.")};
  }
  if (!daemon.ok()) return {Failure(kWhat, std::string(daemon.status().message()), kStartDaemon)};
  const absl::StatusOr<v1::ListRunsResponse> runs = (*daemon)->ListRuns(v1::ListRunsRequest());
  if (!runs.ok()) return {Failure(kWhat, std::string(runs.status().message()), RemedyForAnswer(runs.status()))};
  std::vector<Check> checks = {Ok(kWhat, absl::StrCat("answers at ", address.target, ", ", CountedRuns(*runs)))};
  for (const v1::DaemonWarning& warning : runs->warnings()) {
    const bool storing = warning.kind() == v1::DaemonWarning::NOT_STORING;
    checks.push_back({storing ? "storing" : "segments", storing ? Finding::kFailure : Finding::kWarning, warning.text(),
                      warning.remedy()});
  }
  CheckRecords(**daemon, checks);
  return checks;
}

Check CheckStore(const std::string& directory) {
  constexpr const char* kWhat = "store";
  absl::StatusOr<std::unique_ptr<Source>> stored = OpenStoredRuns(directory);
  if (absl::IsNotFound(stored.status())) {
    return Warning(kWhat, std::string(stored.status().message()),
                   absl::StrCat(kStartDaemon, " It makes the store; --data-dir or NEURALDBG_DATA_DIR say where."));
  }
  if (!stored.ok()) {
    return Failure(kWhat, std::string(stored.status().message()),
                   absl::StrCat("Make ", directory,
                                " readable for this user, or name another data directory with "
                                "--data-dir or NEURALDBG_DATA_DIR."));
  }
  const absl::StatusOr<v1::ListRunsResponse> runs = (*stored)->ListRuns(v1::ListRunsRequest());
  if (runs.ok()) return Ok(kWhat, absl::StrCat(directory, ", ", CountedRuns(*runs)));
  return Failure(kWhat, std::string(runs.status().message()),
                 absl::StrCat("Move ", directory, "/neuraldbg.db away; neuraldbgd then begins a new one."));
}

}  // namespace

ExitCode RunDoctor(const Arguments& arguments, Output& output) {
  const DaemonAddress address{arguments.address, arguments.token_file};
  std::vector<Check> checks = {CheckSharedMemory(), CheckSocket(address.target)};
  for (Check& check : CheckDaemon(address)) checks.push_back(std::move(check));
  checks.push_back(CheckStore(arguments.data_directory));
  Table table({{"CHECK"}, {"RESULT"}, {"WHAT WAS FOUND"}});
  std::string remedies;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  bool failed = false;
  for (const Check& check : checks) {
    failed = failed || check.finding == Finding::kFailure;
    table.AddRow({check.what, FindingName(check.finding), check.text});
    if (!check.remedy.empty()) absl::StrAppend(&remedies, "Next: ", check.what, ": ", check.remedy, "\n");
    list.push_back({{"check", check.what},
                    {"result", FindingName(check.finding)},
                    {"text", check.text},
                    {"remedy", check.remedy}});
    if (output.format() == OutputFormat::kJsonl) output.Write(list.back().dump() + "\n");
  }
  if (output.format() == OutputFormat::kTable) output.Write(table.Render(output.width()) + remedies);
  if (output.format() == OutputFormat::kJson) {
    output.Write(nlohmann::ordered_json{{"checks", list}}.dump(2) + "\n");
  }
  return failed ? kExitFault : kExitSuccess;
}

}  // namespace neuraldbg
