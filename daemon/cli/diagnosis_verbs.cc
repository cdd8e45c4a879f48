// diagnose, report and replay: the same text; diagnose and replay speak through their exit code, report does not.
#include <google/protobuf/util/time_util.h>

#include <iostream>

#include "daemon/cli/verbs.h"
#include "daemon/service/report.h"
#include "daemon/service/run_replay.h"

namespace neuraldbg {
namespace {

constexpr double kWaitDefaultSeconds = 10;  // as DiagnoseRequest.wait_timeout

absl::StatusOr<v1::DiagnoseResponse> Ask(const Arguments& arguments, Source& source) {
  v1::DiagnoseRequest request;
  request.set_run(arguments.run);
  if (arguments.wait_step) {
    request.set_wait_step(*arguments.wait_step);
    if (arguments.rank) request.set_wait_rank(*arguments.rank);
    const double timeout_ms = 1000 * arguments.timeout_s.value_or(kWaitDefaultSeconds);
    *request.mutable_wait_timeout() =
        google::protobuf::util::TimeUtil::MillisecondsToDuration(static_cast<std::int64_t>(timeout_ms));
  }
  return source.Diagnose(request);
}

void Print(const v1::Diagnosis& diagnosis, Output& output) {
  if (output.format() != OutputFormat::kTable) return output.WriteMessage(diagnosis, false);
  ReportStyle style;
  if (output.terminal()) style.width = output.width();
  style.color = output.color();
  output.Write(RenderReport(diagnosis, style));
}

}  // namespace

ExitCode RunDiagnose(const Arguments& arguments, Source& source, Output& output) {
  const absl::StatusOr<v1::DiagnoseResponse> response = Ask(arguments, source);
  if (!response.ok()) return Fail(response.status());
  Print(response->diagnosis(), output);
  const ExitCode code = ExitCodeOf(response->diagnosis().verdict());
  if (response->step_consumed()) return code;
  std::cerr << "neuraldbgctl: step " << arguments.wait_step.value_or(0)
            << " was not reached; the diagnosis does not cover it\n";
  // A script that waits for a step must not take "healthy until some step before" for "healthy".
  return code == kExitSuccess ? kExitUnsure : code;
}

ExitCode RunReport(const Arguments& arguments, Source& source, Output& output) {
  const absl::StatusOr<v1::DiagnoseResponse> response = Ask(arguments, source);
  if (!response.ok()) return Fail(response.status());
  Print(response->diagnosis(), output);
  return kExitSuccess;
}

ExitCode RunReplay(const Arguments& arguments, Output& output) {
  const absl::StatusOr<ReplayedRun> replayed = ReplayRun(arguments.recording);
  // A file that is none is a wrong argument.
  if (!replayed.ok()) return Fail(absl::InvalidArgumentError(replayed.status().message()));
  Print(replayed->diagnosis, output);
  const auto verdict = replayed->diagnosis.verdict();
  if (replayed->recorded && replayed->recorded->verdict() != verdict) {
    std::cerr << "neuraldbgctl: the verdict is " << v1::Diagnosis::Verdict_Name(verdict) << "; when "
              << arguments.recording << " was written it was "
              << v1::Diagnosis::Verdict_Name(replayed->recorded->verdict()) << "\n";
  }
  return ExitCodeOf(verdict);
}

}  // namespace neuraldbg
