#include "daemon/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
    {kMaxPoints, "--max-points", "Roll longer series up, keeping extremes (left out: full detail)", ""},
    {kTimeout, "--timeout", "Seconds to wait for an answer", ""},
    {kInterval, "--interval", "Seconds between refreshes", ""},
    {kCount, "--count", "Refresh so many times (default: until the run ends; once without a terminal)", ""},
    {kShell, "SHELL", "Shell to complete in", "bash zsh fish"},
    {kRecording, "FILE", "An exported run", ""},
    {kForce, "--force", "Replace the file if it exists", "", false},
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
      {"export", "Write a stored run into one file (--file)", {kRun, kForce}},
      {"import", "Take an exported run into the stored runs", {kRecording}},
      {"replay", "Diagnose an exported run again", {kRecording}},
      {"doctor", "Check that everything is in place", {}},
      {"completion", "Print a completion script", {kShell}},
  };
  return verbs;
}

// Verbs of a later release. Asking for one is no typing mistake, so the answer must not look like one.
constexpr auto kLaterVerbs = std::to_array<std::string_view>({"compare"});

std::vector<std::string> NamesOf(const OptionRow& row) { return absl::StrSplit(std::string(row.names), ','); }

// As a sentence names it: the positional where there is one, else the long flag.
std::string NameOf(const OptionRow& row) {
  const std::vector<std::string> names = NamesOf(row);
  return names.front().starts_with('-') ? names.back() : names.front();
}

const OptionRow* RowOfFlag(const std::string& word) {
  const auto* const row = std::find_if(kOptions.begin(), kOptions.end(), [&](const OptionRow& candidate) {
    const std::vector<std::string> names = NamesOf(candidate);
    return word.starts_with('-') && std::find(names.begin(), names.end(), word) != names.end();
  });
  return row == kOptions.end() ? nullptr : row;
}

// (CLI11 shows the text of the exception as it is.)
[[noreturn]] void Refuse(const OptionRow& row, const std::string& must_be, const std::string& text) {
  throw CLI::ValidationError(absl::StrCat(NameOf(row), " must be ", must_be, ", not '", text, "'"));
}

// Digits and nothing else: CLI11 would take 010 for eight and know nothing of a smallest value.
std::uint32_t WholeNumber(const OptionRow& row, const std::string& text, std::uint32_t smallest) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  std::uint32_t value = 0;
  if (digits && absl::SimpleAtoi(text, &value) && value >= smallest) return value;
  Refuse(row, absl::StrCat("a whole number from ", smallest, " to ", std::numeric_limits<std::uint32_t>::max()), text);
}

// A NaN passes every comparison with a range.
double Seconds(const OptionRow& row, const std::string& text, double smallest) {
  constexpr double kLargest = 1'000'000;  // eleven days: more is a mistake
  double value = 0;
  if (absl::SimpleAtod(text, &value) && std::isfinite(value) && value >= smallest && value <= kLargest) return value;
  Refuse(row, absl::StrCat("a number of seconds from ", smallest, " to 1000000"), text);
}

// An empty word is a variable that was not set in a script, never a wish for the default.
std::string Word(const OptionRow& row, const std::string& text) {
  if (text.empty()) throw CLI::ValidationError(absl::StrCat(NameOf(row), " must not be empty; leave it out instead"));
  if (row.choices.empty()) return text;
  const std::vector<std::string> choices = absl::StrSplit(std::string(row.choices), ' ');
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
  Refuse(row, absl::StrCat("one of ", absl::StrJoin(choices, ", ")), text);
}

// Why the word cannot stand where a verb or a global option must.
std::string WhyNoVerb(const std::string& word) {
  if (std::find(kLaterVerbs.begin(), kLaterVerbs.end(), word) != kLaterVerbs.end()) {
    return absl::StrCat("the verb '", word, "' is not part of this release");
  }
  if (RowOfFlag(word.substr(0, word.find('='))) != nullptr) {
    return absl::StrCat("the option '", word, "' belongs behind a verb");
  }
  return absl::StrCat("there is no verb or option '", word, "'");
}

// Empty if the command line has a verb, or asks for help. (CLI11 would only say that a subcommand is required.)
std::string WhyNoVerb(const std::vector<std::string>& command_line) {
  bool is_value = false;
  for (const std::string& word : command_line) {
    if (std::exchange(is_value, false)) continue;
    if (word == "-h" || word == "--help" || word == "--version") return "";
    const std::string flag = word.substr(0, word.find('='));
    if (const OptionRow* row = RowOfFlag(flag); row != nullptr && IsGlobal(row->option)) {
      is_value = flag == word;  // --output=json brings its value along
      continue;
    }
    const auto named = [&](const VerbRow& verb) { return verb.name == word; };
    return std::any_of(Verbs().begin(), Verbs().end(), named) ? "" : WhyNoVerb(word);
  }
  return "no verb was given";
}

std::string InOurWords(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::size_t twice = text.find(": At Most 1 required");
  if (twice == std::string::npos) return text;
  const std::string option = text.substr(0, twice);
  return option == "--run" ? "one run can be asked for, as RUN or with --run" : option + " can be given once";
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
      return absl::InvalidArgumentError(absl::StrCat(InOurWords(error), " (see neuraldbgctl --help)"));
    }
    arguments_.verb = app_.get_subcommands().front()->get_name();
    if (format_ == "json") arguments_.format = OutputFormat::kJson;
    if (format_ == "jsonl") arguments_.format = OutputFormat::kJsonl;
    if (arguments_.mermaid && arguments_.format != OutputFormat::kTable) {
      return absl::InvalidArgumentError(
          absl::StrCat("--mermaid and --output ", format_, " ask for two formats at once; drop one of them"));
    }
    if (arguments_.verb == "export" && arguments_.file.empty()) {
      return absl::InvalidArgumentError("export needs --file: the file to write");
    }
    if (arguments_.verb == "diagnose" && !arguments_.wait_step && (arguments_.rank || arguments_.timeout_s)) {
      return absl::InvalidArgumentError(
          absl::StrCat(arguments_.rank ? "--rank" : "--timeout", " means nothing without --wait-step"));
    }
    parsed.arguments = arguments_;
    return parsed;
  }

 private:
  const CLI::App& Asked() const {
    const auto verbs = app_.get_subcommands();
    return verbs.empty() ? app_ : *verbs.front();
  }

  void Bind(CLI::App& app, const OptionRow& row) {
    const std::string names(row.names), help(row.help);
    Arguments& to = arguments_;
    if (!row.takes_value) {
      app.add_flag(names, row.option == kFollow ? to.follow : row.option == kForce ? to.force : to.mermaid, help);
      return;
    }
    CLI::Option* added =
        app.add_option_function<std::string>(names, [this, &row](const std::string& text) { Take(row, text); }, help);
    added->type_name(ValueName(row));
    if (row.option == kShell || row.option == kRecording) added->required();
    if (row.option != kSite) return;
    added->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    added->trigger_on_parse();  // each value of an option that may be repeated comes by itself
  }

  static std::string ValueName(const OptionRow& row) {
    if (!row.choices.empty()) return absl::StrJoin(absl::StrSplit(std::string(row.choices), ' '), "|");
    switch (row.option) {
      case kTimeout:
      case kInterval:
        return "SECONDS";
      case kWaitStep:
      case kFromStep:
      case kToStep:
        return "STEP";
      case kRank:
      case kMaxPoints:
      case kCount:
        return "N";
      default:
        return "TEXT";
    }
  }

  void Take(const OptionRow& row, const std::string& text) {
    constexpr double kIntervalMin = 0.1;  // faster than anybody reads
    Arguments& to = arguments_;
    switch (row.option) {
      case kWaitStep:
        to.wait_step = WholeNumber(row, text, 0);
        break;
      case kRank:
        to.rank = WholeNumber(row, text, 0);
        break;
      case kFromStep:
        to.from_step = WholeNumber(row, text, 0);
        break;
      case kToStep:
        to.to_step = WholeNumber(row, text, 0);
        break;
      case kMaxPoints:
        to.max_points = WholeNumber(row, text, 1);
        break;
      case kCount:
        to.count = WholeNumber(row, text, 1);
        break;
      case kTimeout:
        to.timeout_s = Seconds(row, text, 0);
        break;
      case kInterval:
        to.interval_s = Seconds(row, text, kIntervalMin);
        break;
      case kSite:
        to.sites.push_back(Word(row, text));
        break;
      default:
        WordOf(row.option) = Word(row, text);
    }
  }

  std::string& WordOf(Option option) {
    switch (option) {
      case kRun:
        return arguments_.run;
      case kStatistic:
        return arguments_.statistic;
      case kShell:
        return arguments_.shell;
      case kRecording:
        return arguments_.recording;
      case kFile:
        return arguments_.file;
      case kAddress:
        return arguments_.address;
      case kDataDirectory:
        return arguments_.data_directory;
      case kTokenFile:
        return arguments_.token_file;
      default:
        return format_;
    }
  }

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
  if (const std::string why = WhyNoVerb(command_line); !why.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(why, " (see neuraldbgctl --help)"));
  }
  return Parser().Parse(command_line);
}

}  // namespace neuraldbg
