// status and top: what goes on now.
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/cli/tables.h"
#include "daemon/cli/verbs.h"
#include "daemon/service/report.h"
#include "nlohmann/json.hpp"

namespace neuraldbg {
namespace {

// Everything `top` shows at one moment.
struct Frame {
  v1::Run run;
  v1::ListRanksResponse ranks;
  v1::Diagnosis diagnosis;
};

absl::StatusOr<Frame> TakeFrame(const Arguments& arguments, Source& source) {
  v1::GetRunRequest run_request;
  run_request.set_run(arguments.run);
  const absl::StatusOr<v1::GetRunResponse> run = source.GetRun(run_request);
  if (!run.ok()) return run.status();
  v1::ListRanksRequest ranks_request;
  ranks_request.set_run(run->run().run());
  const absl::StatusOr<v1::ListRanksResponse> ranks = source.ListRanks(ranks_request);
  if (!ranks.ok()) return ranks.status();
  v1::DiagnoseRequest diagnose_request;
  diagnose_request.set_run(run->run().run());
  const absl::StatusOr<v1::DiagnoseResponse> diagnosis = source.Diagnose(diagnose_request);
  if (!diagnosis.ok()) return diagnosis.status();
  return Frame{run->run(), *ranks, diagnosis->diagnosis()};
}

std::string Render(const Frame& frame, const Output& output) {
  constexpr const char* kClearScreen = "\x1b[H\x1b[2J";
  v1::ListRunsResponse one;
  *one.add_runs() = frame.run;
  ReportStyle style;
  if (output.terminal()) style.width = output.width();
  style.color = output.color();
  return absl::StrCat(output.terminal() ? kClearScreen : "", ToTable(one).Render(output.width()), "\n",
                      ToTable(frame.ranks).Render(output.width()), "\n", RenderReport(frame.diagnosis, style));
}

// One object a frame, in one line: {"run", "ranks", "diagnosis"}, each as the RPC of that name gives it.
std::string RenderJson(const Frame& frame) {
  nlohmann::ordered_json json;
  json["run"] = nlohmann::ordered_json::parse(ToJson(frame.run, false));
  json["ranks"] = nlohmann::ordered_json::parse(ToJson(frame.ranks, false))["ranks"];
  json["diagnosis"] = nlohmann::ordered_json::parse(ToJson(frame.diagnosis, false));
  return json.dump() + "\n";
}

}  // namespace

ExitCode RunStatus(const Arguments& arguments, Source& source, Output& output) {
  absl::StatusOr<v1::ListRunsResponse> runs = source.ListRuns(v1::ListRunsRequest());
  if (!runs.ok()) return Fail(runs.status());
  v1::ListRunsResponse running;
  for (const v1::Run& run : runs->runs()) {
    if (run.state() == v1::Run::RUNNING) *running.add_runs() = run;
  }
  if (output.format() == OutputFormat::kTable) {
    output.Write(absl::StrCat("neuraldbgd answers at ", arguments.address, "; ", CountedRuns(*runs), ", ",
                              running.runs_size(), " running.\n"));
    if (!running.runs().empty()) output.WriteTable(ToTable(running));
    for (const v1::DaemonWarning& warning : runs->warnings()) {
      output.Write(absl::StrCat("warning: ", WarningText(warning), "\n"));
    }
    return kExitSuccess;
  }
  nlohmann::ordered_json status;
  status["address"] = arguments.address;
  status["state"] = "SERVING";
  status["runs"] = runs->runs_size();
  status["running"] = running.runs_size();
  status["warnings"] = nlohmann::ordered_json::parse(ToJson(*runs, false))["warnings"];
  output.Write(status.dump(output.format() == OutputFormat::kJson ? 2 : -1) + "\n");
  return kExitSuccess;
}

ExitCode RunTop(const Arguments& arguments, Source& source, Output& output) {
  const bool refresh = output.terminal() || arguments.count.has_value();
  for (std::uint32_t shown = 1;; ++shown) {
    const absl::StatusOr<Frame> frame = TakeFrame(arguments, source);
    if (!frame.ok()) return Fail(frame.status());
    output.Write(output.format() == OutputFormat::kTable ? Render(*frame, output) : RenderJson(*frame));
    const bool enough = !refresh || (arguments.count && shown >= *arguments.count);
    if (enough || frame->run.state() != v1::Run::RUNNING || !output.Finish().ok()) return kExitSuccess;
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.interval_s));
  }
}

}  // namespace neuraldbg
