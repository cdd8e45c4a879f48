// neuraldbgctl: parses, finds out whom to ask, runs the verb.
#include <csignal>
#include <iostream>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/cli/arguments.h"
#include "daemon/cli/completion.h"
#include "daemon/cli/surroundings.h"
#include "daemon/cli/verbs.h"

namespace neuraldbg {

ExitCode Fail(const absl::Status& status) {
  std::cerr << "neuraldbgctl: " << std::string(status.message()) << "\n";
  return ExitCodeOf(status);
}

namespace {

struct VerbEntry {
  SourceVerb run = nullptr;
  bool needs_daemon = false;
};

const std::map<std::string, VerbEntry>& SourceVerbs() {
  static const std::map<std::string, VerbEntry> verbs = {
      {"status", {RunStatus, true}}, {"runs", {RunRuns}},         {"ranks", {RunRanks}},   {"sites", {RunSites}},
      {"events", {RunEvents}},       {"series", {RunSeries}},     {"graph", {RunGraph}},   {"tail", {RunTail, true}},
      {"top", {RunTop, true}},       {"diagnose", {RunDiagnose}}, {"report", {RunReport}},
  };
  return verbs;
}

using LocalVerb = ExitCode (*)(const Arguments& arguments, Output& output);

const std::map<std::string, LocalVerb>& LocalVerbs() {
  static const std::map<std::string, LocalVerb> verbs = {
      {"doctor", RunDoctor}, {"export", RunExport}, {"import", RunImport}, {"replay", RunReplay}};
  return verbs;
}

// A daemon that a training job has just spawned may need a moment: whoever waits for a step waits for it, too.
absl::StatusOr<std::unique_ptr<Source>> FindDaemon(const Arguments& arguments) {
  constexpr std::chrono::milliseconds kRetryInterval{100};
  constexpr double kWaitDefaultSeconds = 10;
  const auto patience =
      std::chrono::duration<double>(arguments.wait_step ? arguments.timeout_s.value_or(kWaitDefaultSeconds) : 0.0);
  const auto give_up = std::chrono::steady_clock::now() + patience;
  for (;;) {
    absl::StatusOr<std::unique_ptr<Source>> daemon =
        ConnectToDaemon({arguments.address, arguments.token_file}, kConnectPatience);
    if (!absl::IsUnavailable(daemon.status()) || std::chrono::steady_clock::now() >= give_up) return daemon;
    std::this_thread::sleep_for(kRetryInterval);
  }
}

absl::StatusOr<std::unique_ptr<Source>> FindSource(const Arguments& arguments, bool needs_daemon) {
  absl::StatusOr<std::unique_ptr<Source>> daemon = FindDaemon(arguments);
  if (daemon.ok() || needs_daemon || !absl::IsUnavailable(daemon.status())) return daemon;
  absl::StatusOr<std::unique_ptr<Source>> stored = OpenStoredRuns(arguments.data_directory);
  if (absl::IsNotFound(stored.status())) {
    return absl::NotFoundError(absl::StrCat(daemon.status().message(), ", and there is no stored run ",
                                            arguments.run.empty() ? "" : absl::StrCat("'", arguments.run, "' "), "in ",
                                            arguments.data_directory));
  }
  if (!stored.ok()) {
    return absl::UnavailableError(absl::StrCat(daemon.status().message(), ", and the stored runs in ",
                                               arguments.data_directory,
                                               " cannot be read: ", stored.status().message()));
  }
  std::cerr << "neuraldbgctl: " << std::string(daemon.status().message()) << "; reading stored runs from "
            << arguments.data_directory << "\n";
  return stored;
}

ExitCode RunVerb(const Arguments& arguments, Output& output) {
  if (arguments.verb == "completion") {
    output.Write(CompletionScript(arguments.shell));
    return kExitSuccess;
  }
  if (const auto local = LocalVerbs().find(arguments.verb); local != LocalVerbs().end()) {
    return local->second(arguments, output);
  }
  const VerbEntry& verb = SourceVerbs().at(arguments.verb);
  absl::StatusOr<std::unique_ptr<Source>> source = FindSource(arguments, verb.needs_daemon);
  if (!source.ok()) return Fail(source.status());
  return verb.run(arguments, **source, output);
}

ExitCode RunMain(const std::vector<std::string>& command_line) {
  absl::StatusOr<ParsedArguments> parsed = ParseArguments(command_line);
  if (!parsed.ok()) return Fail(parsed.status());
  if (const std::optional<std::string>& print = parsed->print) {
    std::cout << *print;
    return kExitSuccess;
  }
  Arguments& arguments = parsed->arguments;
  const absl::Status surroundings = ApplySurroundings(arguments);
  // A start-up file of a shell asks for its completion whatever else is wrong.
  if (!surroundings.ok() && arguments.verb != "completion") return Fail(surroundings);
  absl::StatusOr<Output> output = Output::Open(arguments);
  if (!output.ok()) return Fail(output.status());
  const ExitCode code = RunVerb(arguments, *output);
  const absl::Status written = output->Finish();
  return written.ok() ? code : Fail(written);
}

}  // namespace
}  // namespace neuraldbg

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // `neuraldbgctl … | head` must not look like a crash
  return neuraldbg::RunMain({argv + 1, argv + argc});
}
