// The verbs of neuraldbgctl. Each returns the exit code; what goes wrong is one sentence on standard error.
#pragma once

#include "absl/status/status.h"
#include "daemon/cli/arguments.h"
#include "daemon/cli/exit_codes.h"
#include "daemon/cli/output.h"
#include "daemon/cli/source.h"

namespace neuraldbg {

// A verb that asks about runs.
using SourceVerb = ExitCode (*)(const Arguments& arguments, Source& source, Output& output);

ExitCode RunRuns(const Arguments& arguments, Source& source, Output& output);
ExitCode RunRanks(const Arguments& arguments, Source& source, Output& output);
ExitCode RunSites(const Arguments& arguments, Source& source, Output& output);
ExitCode RunEvents(const Arguments& arguments, Source& source, Output& output);
ExitCode RunSeries(const Arguments& arguments, Source& source, Output& output);
ExitCode RunDiagnose(const Arguments& arguments, Source& source, Output& output);
ExitCode RunReport(const Arguments& arguments, Source& source, Output& output);
ExitCode RunGraph(const Arguments& arguments, Source& source, Output& output);
// These need a daemon.
ExitCode RunStatus(const Arguments& arguments, Source& source, Output& output);
ExitCode RunTail(const Arguments& arguments, Source& source, Output& output);
ExitCode RunTop(const Arguments& arguments, Source& source, Output& output);

// These read and write files and the data directory, whether a daemon runs or not.
ExitCode RunExport(const Arguments& arguments, Output& output);
ExitCode RunImport(const Arguments& arguments, Output& output);
ExitCode RunReplay(const Arguments& arguments, Output& output);

// Needs nothing, and says what is missing.
ExitCode RunDoctor(const Arguments& arguments, Output& output);

// Prints "neuraldbgctl: <message>" and gives the exit code of the status.
ExitCode Fail(const absl::Status& status);

}  // namespace neuraldbg
