// export and import: between the stored runs of a data directory and files.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "daemon/cli/verbs.h"
#include "daemon/service/query.h"
#include "daemon/service/report.h"
#include "daemon/service/run_export.h"
#include "daemon/store/run_import.h"

namespace neuraldbg {
namespace {

void Say(const std::string& text, const nlohmann::ordered_json& fields, Output& output) {
  const int indent = output.format() == OutputFormat::kJson ? 1 : -1;
  output.Write(output.format() == OutputFormat::kTable ? text : fields.dump(indent) + "\n");
}

// What is wrong with a file that was named is wrong with the command line.
ExitCode FailOnFile(const absl::Status& status) {
  if (absl::IsAlreadyExists(status) || absl::IsDataLoss(status) || absl::IsPermissionDenied(status)) {
    return Fail(absl::InvalidArgumentError(status.message()));
  }
  return Fail(status);
}

// A file system without unnamed files shows the export before it is whole. Set before the handler is.
std::string unfinished_export;  // NOLINT(cert-err58-cpp): an empty string cannot throw

extern "C" void RemoveUnfinishedExport(int number) {
  ::unlink(unfinished_export.c_str());
  std::signal(number, SIG_DFL);
  std::raise(number);  // comes when this function returns: whoever waits sees what ended the process
}

void LeaveNothingAtASignal(const std::string& file) {
  unfinished_export = PortableRunWriter::TemporaryPath(file);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(number, RemoveUnfinishedExport) == SIG_IGN) std::signal(number, SIG_IGN);  // nohup
  }
}

bool LiesIn(const std::string& file, const std::string& directory) {
  std::error_code error;
  const auto outer = std::filesystem::weakly_canonical(directory, error);
  for (auto at = std::filesystem::weakly_canonical(file, error); !at.empty(); at = at.parent_path()) {
    if (at == outer) return true;
    if (at == at.parent_path()) break;
  }
  return false;
}

// The store itself lies there, and reports and the endpoint of a daemon.
absl::Status CheckReplaceable(const Arguments& arguments) {
  std::error_code error;
  if (!std::filesystem::exists(arguments.file, error) || !LiesIn(arguments.file, arguments.data_directory)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(arguments.file, " lies in the data directory ",
                                                 arguments.data_directory, ", where export replaces nothing."));
}

// Nothing is left of a store that was made for an import that failed.
class FreshStore {
 public:
  explicit FreshStore(const std::string& directory) : directory_(directory), was_there_(Store::Exists(directory)) {}
  FreshStore(const FreshStore&) = delete;
  FreshStore& operator=(const FreshStore&) = delete;
  ~FreshStore() {
    if (!was_there_ && !keep_) Store::Remove(directory_);
  }
  void Keep() { keep_ = true; }

 private:
  const std::string directory_;
  const bool was_there_;
  bool keep_ = false;
};

}  // namespace

ExitCode RunExport(const Arguments& arguments, Output& output) {
  const absl::StatusOr<std::unique_ptr<StoreReader>> reader = Store::OpenReadOnly(arguments.data_directory);
  if (!reader.ok()) return Fail(reader.status());
  const Caller caller{geteuid(), true};  // whoever may read the file may read all of it
  const absl::StatusOr<StoredRun> run = ResolveRun(**reader, caller, arguments.run);
  if (!run.ok()) {
    return Fail(
        {run.status().code(), absl::StrCat(run.status().message(), " (Looked in ", arguments.data_directory, ".)")});
  }
  if (const absl::Status status = CheckReplaceable(arguments); !status.ok()) return Fail(status);
  LeaveNothingAtASignal(arguments.file);
  const auto existing = arguments.force ? PortableRunWriter::Existing::kReplace : PortableRunWriter::Existing::kRefuse;
  const absl::StatusOr<ExportedRun> exported = ExportRun(**reader, *run, arguments.file, existing);
  if (absl::IsAlreadyExists(exported.status())) {
    return FailOnFile(absl::AlreadyExistsError(absl::StrCat(arguments.file, " exists already; --force replaces it.")));
  }
  if (!exported.ok()) return FailOnFile(exported.status());
  const double bytes_per_record =
      exported->records == 0 ? 0 : static_cast<double>(exported->bytes) / static_cast<double>(exported->records);
  Say(absl::StrCat(run->display_name, ": ", exported->frames, " steps of ", exported->ranks,
                   exported->ranks == 1 ? " rank, " : " ranks, ", exported->records, " records in ", exported->bytes,
                   " bytes (", NumberText(bytes_per_record), " a record), written to ", arguments.file, "\n"),
      {{"run", run->display_name},
       {"file", arguments.file},
       {"bytes", exported->bytes},
       {"ranks", exported->ranks},
       {"steps", exported->frames},
       {"records", exported->records}},
      output);
  return kExitSuccess;
}

ExitCode RunImport(const Arguments& arguments, Output& output) {
  FreshStore fresh(arguments.data_directory);  // outlives the store, which must be closed before it can be removed
  const absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(arguments.data_directory);
  if (absl::IsFailedPrecondition(store.status())) {
    return Fail(absl::FailedPreconditionError(
        absl::StrCat("A neuraldbgd writes to ", arguments.data_directory,
                     ", and only one program may; stop it, or import into another directory (--data-dir).")));
  }
  if (!store.ok()) return Fail(store.status());
  const absl::StatusOr<StoredRun> run = ImportRun(**store, arguments.recording, geteuid());
  if (!run.ok()) return FailOnFile(run.status());
  fresh.Keep();
  Say(absl::StrCat(arguments.recording, " is stored as ", run->display_name, "\n"),
      {{"run", run->display_name}, {"file", arguments.recording}}, output);
  return kExitSuccess;
}

}  // namespace neuraldbg
