#include "daemon/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace neuraldbg {
namespace {

using enum Option;

constexpr auto kOptions = std::to_array<OptionRow>({
    {kRun, "RUN,--run", "Run: its name (the newest launch) or NAME#2; left out, the newest run", ""},
    {kFollow, "-f,--follow", "Go on with live ones until the run ends", "", false},
    {kMermaid, "--mermaid", "Print a Mermaid flowchart", "", false},
    {kWaitStep, "--wait-step", "Answer when this step was consumed", ""},
    {kRank, "--rank", "Only this rank", ""},
    {kFromStep, "--from", "First step", ""},
    {kToStep, "--to", "Last step", ""},
    {kSite, "--site", "Site, or module for all its sites; may be repeated", ""},
    {kStatistic, "--statistic", "Statistic, e.g. rms (default: the main one of each site)", ""},
    {kMaxPoints, "--max-points", "Roll longer series up, keeping extremes (0: full detail)", ""},
    {kTimeout, "--timeout", "Seconds to wait for an answer", ""},
    {kInterval, "--interval", "Seconds between refreshes", ""},
    {kCount, "--count", "Refresh so many times (default: until the run ends; once without a terminal)", ""},
    {kShell, "SHELL", "Shell to complete in", "bash zsh fish"},
    {kOutput, "-o,--output", "Format", "table json jsonl"},
    {kFile, "--file", "Write to this file instead of standard output", ""},
    {kAddress, "--address", "Daemon: unix:PATH or HOST:PORT (NEURALDBG_ADDRESS)", ""},
    {kDataDirectory, "--data-dir", "Stored runs, where no daemon answers (NEURALDBG_DATA_DIR)", ""},
    {kTokenFile, "--token-file", "File with the daemon's token (NEURALDBG_TOKEN_FILE)", ""},
});

const std::vector<VerbRow>& VerbTable() {
  static const std::vector<VerbRow> verbs = {
      {"status", "Is the daemon there, and what does it watch?", {}},
      {"runs", "List runs, newest first", {}},
      {"ranks", "List the ranks of a run", {kRun}},
      {"sites", "List the observed places of a run", {kRun, kRank}},
      {"events", "List what changed", {kRun, kFollow}},
      {"series", "Print stored measurements", {kRun, kSite, kStatistic, kRank, kFromStep, kToStep, kMaxPoints}},
      {"diagnose", "Say what is wrong, why, and what to do", {kRun, kWaitStep, kRank, kTimeout}},
      {"graph", "Print the causal graph of the training step", {kRun, kRank, kMermaid}},
      {"tail", "Follow the events of a run", {kRun}},
      {"top", "Watch a run", {kRun, kInterval, kCount}},
      {"report", "Print the report of a run", {kRun}},
      {"doctor", "Check that everything is in place", {}},
      {"completion", "Print a completion script", {kShell}},
  };
  return verbs;
}

bool IsGlobalFlag(const std::string& word) {
  return std::any_of(kOptions.begin(), kOptions.end(), [&](const OptionRow& row) {
    const std::vector<std::string> names = absl::StrSplit(std::string(row.names), ',');
    return IsGlobal(row.option) && std::find(names.begin(), names.end(), word) != names.end();
  });
}

// The first word of the command line that cannot stand where a verb or a global option must. Empty if there is none.
// (CLI11 would only say that a subcommand is required.)
std::string WordThatIsNoVerb(const std::vector<std::string>& command_line) {
  bool is_value = false;
  for (const std::string& word : command_line) {
    if (std::exchange(is_value, false)) continue;
    if (word == "-h" || word == "--help" || word == "--version") return "";
    const std::string flag = word.substr(0, word.find('='));
    if (IsGlobalFlag(flag)) {
      is_value = flag == word;  // --output=json brings its value along
      continue;
    }
    const auto named = [&](const VerbRow& verb) { return verb.name == word; };
    return std::any_of(Verbs().begin(), Verbs().end(), named) ? "" : word;
  }
  return "";
}

// Binds the rows of the tables to the fields of Arguments.
class Parser {
 public:
  Parser() : app_("neuraldbgctl: asks neuraldbgd what is wrong with a training run.", "neuraldbgctl") {
    app_.require_subcommand(1);
    app_.set_version_flag("--version", "neuraldbgctl " NEURALDBG_VERSION);
    app_.footer(
        "Exit codes: 0 HEALTHY or success, 1 FAULT, 2 usage, 3 daemon unreachable, 4 no such run, "
        "5 UNSURE or INCOMPLETE_DATA.");
    for (const OptionRow& row : kOptions) {
      if (IsGlobal(row.option)) Bind(app_, row);
    }
    for (const VerbRow& verb : Verbs()) {
      CLI::App* sub = app_.add_subcommand(std::string(verb.name), std::string(verb.help));
      sub->fallthrough();  // global options may stand after the verb
      for (const Option option : verb.options) Bind(*sub, RowOf(option));
    }
  }

  absl::StatusOr<ParsedArguments> Parse(const std::vector<std::string>& command_line) {
    std::vector<std::string> reversed(command_line.rbegin(), command_line.rend());  // as CLI11 takes them
    ParsedArguments parsed;
    try {
      app_.parse(reversed);
    } catch (const CLI::CallForHelp&) {
      parsed.print = Asked().help();
      return parsed;
    } catch (const CLI::CallForVersion&) {
      parsed.print = "neuraldbgctl " NEURALDBG_VERSION "\n";
      return parsed;
    } catch (const CLI::ParseError& error) {
      return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see neuraldbgctl --help)"));
    }
    arguments_.verb = app_.get_subcommands().front()->get_name();
    if (format_ == "json") arguments_.format = OutputFormat::kJson;
    if (format_ == "jsonl") arguments_.format = OutputFormat::kJsonl;
    parsed.arguments = arguments_;
    return parsed;
  }

 private:
  const CLI::App& Asked() const {
    const auto verbs = app_.get_subcommands();
    return verbs.empty() ? app_ : *verbs.front();
  }

  void Bind(CLI::App& app, const OptionRow& row) {
    CLI::Option* added = Add(app, row, std::string(row.names), std::string(row.help));
    if (row.choices.empty()) return;
    added->check(CLI::IsMember(std::vector<std::string>(absl::StrSplit(std::string(row.choices), ' '))));
  }

  CLI::Option* Add(CLI::App& app, const OptionRow& row, const std::string& names, const std::string& help) {
    Arguments& to = arguments_;
    switch (row.option) {
      case kRun:
        return app.add_option(names, to.run, help);
      case kFollow:
        return app.add_flag(names, to.follow, help);
      case kMermaid:
        return app.add_flag(names, to.mermaid, help);
      case kWaitStep:
        return app.add_option(names, to.wait_step, help);
      case kRank:
        return app.add_option(names, to.rank, help);
      case kFromStep:
        return app.add_option(names, to.from_step, help);
      case kToStep:
        return app.add_option(names, to.to_step, help);
      case kSite:
        return app.add_option(names, to.sites, help)->allow_extra_args(false);
      case kStatistic:
        return app.add_option(names, to.statistic, help);
      case kMaxPoints:
        return app.add_option(names, to.max_points, help);
      case kTimeout:
        return app.add_option(names, to.timeout_s, help)->check(CLI::Range(0.0, kSecondsMax));
      case kInterval:
        return app.add_option(names, to.interval_s, help)->check(CLI::Range(kIntervalMin, kSecondsMax));
      case kCount:
        return app.add_option(names, to.count, help);
      case kShell:
        return app.add_option(names, to.shell, help)->required();
      case kOutput:
        return app.add_option(names, format_, help);
      case kFile:
        return app.add_option(names, to.file, help);
      case kAddress:
        return app.add_option(names, to.address, help);
      case kDataDirectory:
        return app.add_option(names, to.data_directory, help);
      case kTokenFile:
        return app.add_option(names, to.token_file, help);
    }
    return nullptr;
  }

  static constexpr double kSecondsMax = 1e6;   // eleven days: more is a mistake
  static constexpr double kIntervalMin = 0.1;  // faster than anybody reads

  CLI::App app_;
  Arguments arguments_;
  std::string format_ = "table";
};

}  // namespace

std::span<const OptionRow> Options() { return kOptions; }

std::span<const VerbRow> Verbs() { return VerbTable(); }

const OptionRow& RowOf(Option option) {
  return *std::find_if(kOptions.begin(), kOptions.end(), [&](const OptionRow& row) { return row.option == option; });
}

bool IsGlobal(Option option) { return option >= kOutput; }

absl::StatusOr<ParsedArguments> ParseArguments(const std::vector<std::string>& command_line) {
  const std::string stranger = WordThatIsNoVerb(command_line);
  if (!stranger.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no verb or option '", stranger, "' (see neuraldbgctl --help)"));
  }
  return Parser().Parse(command_line);
}

}  // namespace neuraldbg
