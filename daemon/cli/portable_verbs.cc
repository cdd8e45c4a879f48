// export and import: between the stored runs of a data directory and files.
#include <unistd.h>

#include <nlohmann/json.hpp>

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
  const absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(arguments.data_directory);
  if (absl::IsFailedPrecondition(store.status())) {
    return Fail(absl::FailedPreconditionError(
        absl::StrCat("A neuraldbgd writes to ", arguments.data_directory,
                     ", and only one program may; stop it, or import into another directory (--data-dir).")));
  }
  if (!store.ok()) return Fail(store.status());
  const absl::StatusOr<StoredRun> run = ImportRun(**store, arguments.recording, geteuid());
  if (!run.ok()) return FailOnFile(run.status());
  Say(absl::StrCat(arguments.recording, " is stored as ", run->display_name, "\n"),
      {{"run", run->display_name}, {"file", arguments.recording}}, output);
  return kExitSuccess;
}

}  // namespace neuraldbg
