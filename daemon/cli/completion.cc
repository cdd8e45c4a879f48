#include "daemon/cli/completion.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "daemon/cli/arguments.h"

namespace neuraldbg {
namespace {

// The flags of a row, without positional names: "RUN,--run" -> {"--run"}.
std::vector<std::string> FlagsOf(const OptionRow& row) {
  std::vector<std::string> flags;
  for (const auto name : absl::StrSplit(std::string(row.names), ',')) {
    if (!name.empty() && name.front() == '-') flags.emplace_back(name);
  }
  return flags;
}

std::vector<OptionRow> RowsOf(const VerbRow& verb) {
  std::vector<OptionRow> rows;
  for (const Option option : verb.options) rows.push_back(RowOf(option));
  for (const OptionRow& row : Options()) {
    if (IsGlobal(row.option)) rows.push_back(row);
  }
  return rows;
}

bool TakesRun(const VerbRow& verb) {
  for (const Option option : verb.options) {
    if (option == Option::kRun) return true;
  }
  return false;
}

bool TakesShell(const VerbRow& verb) { return !verb.options.empty() && verb.options.front() == Option::kShell; }

bool TakesRecording(const VerbRow& verb) { return !verb.options.empty() && verb.options.front() == Option::kRecording; }

std::string VerbNames() {
  std::vector<std::string> names;
  for (const VerbRow& verb : Verbs()) names.emplace_back(verb.name);
  return absl::StrJoin(names, " ");
}

// Names of runs come from the daemon, or from the stored runs.
constexpr const char* kRunsCommand =
    "neuraldbgctl runs -o jsonl 2>/dev/null | sed -n 's/^{\"run\":\"\\([^\"]*\\)\".*/\\1/p'";

std::string Bash() {
  std::string cases, values;
  for (const VerbRow& verb : Verbs()) {
    std::vector<std::string> words;
    for (const OptionRow& row : RowsOf(verb)) {
      for (const std::string& flag : FlagsOf(row)) words.push_back(flag);
    }
    std::string more = absl::StrCat("words=\"", absl::StrJoin(words, " "), "\"");
    if (TakesRun(verb)) absl::StrAppend(&more, "; [[ $cur == -* ]] || words=\"$(", kRunsCommand, ")\"");
    if (TakesShell(verb)) absl::StrAppend(&more, "; words=\"$words bash zsh fish\"");
    if (TakesRecording(verb)) {
      absl::StrAppend(&more, "; [[ $cur == -* ]] || { COMPREPLY=($(compgen -f -- \"$cur\")); return; }");
    }
    absl::StrAppend(&cases, "    ", std::string(verb.name), ") ", more, ";;\n");
  }
  for (const OptionRow& row : Options()) {
    const std::vector<std::string> flags = FlagsOf(row);
    if (flags.empty() || !row.takes_value) continue;
    std::string reply = "return";
    if (!row.choices.empty())
      reply = absl::StrCat("COMPREPLY=($(compgen -W \"", std::string(row.choices), "\" -- \"$cur\")); return");
    if (row.option == Option::kFile || row.option == Option::kDataDirectory || row.option == Option::kTokenFile) {
      reply = "COMPREPLY=($(compgen -f -- \"$cur\")); return";
    }
    if (row.option == Option::kRun)
      reply = absl::StrCat("COMPREPLY=($(compgen -W \"$(", kRunsCommand, ")\" -- \"$cur\")); return");
    absl::StrAppend(&values, "    ", absl::StrJoin(flags, "|"), ") ", reply, ";;\n");
  }
  return absl::StrCat(
      "# bash completion for neuraldbgctl; load with: source <(neuraldbgctl completion bash)\n"
      "_neuraldbgctl() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb=\"\" words=\"\" i\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    [[ \" ",
      VerbNames(),
      " \" == *\" ${COMP_WORDS[i]} \"* ]] && { verb=${COMP_WORDS[i]}; break; }\n"
      "  done\n"
      "  case $prev in\n",
      values, "  esac\n  case $verb in\n", cases, "    *) words=\"", VerbNames(),
      " --help --version\";;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
      "}\n"
      "complete -F _neuraldbgctl neuraldbgctl\n");
}

std::string Quoted(std::string_view text) {
  return absl::StrReplaceAll(std::string(text), {{"'", ""}, {"[", "("}, {"]", ")"}});
}

std::string Zsh() {
  std::string verbs, cases;
  for (const VerbRow& verb : Verbs()) {
    absl::StrAppend(&verbs, "    '", std::string(verb.name), ":", Quoted(verb.help), "'\n");
    std::string specs;
    for (const OptionRow& row : RowsOf(verb)) {
      for (const std::string& flag : FlagsOf(row)) {
        std::string action = row.takes_value ? ": :_files" : "";
        if (!row.choices.empty()) action = absl::StrCat(": :(", std::string(row.choices), ")");
        if (row.option == Option::kRun) action = ": :_neuraldbgctl_runs";
        absl::StrAppend(&specs, " '", flag, "[", Quoted(row.help), "]", action, "'");
      }
    }
    if (TakesRun(verb)) absl::StrAppend(&specs, " '1: :_neuraldbgctl_runs'");
    if (TakesShell(verb)) absl::StrAppend(&specs, " '1: :(bash zsh fish)'");
    if (TakesRecording(verb)) absl::StrAppend(&specs, " '1: :_files'");
    absl::StrAppend(&cases, "    ", std::string(verb.name), ") _arguments", specs, ";;\n");
  }
  return absl::StrCat(
      "#compdef neuraldbgctl\n"
      "_neuraldbgctl_runs() { compadd -- ${(f)\"$(",
      kRunsCommand,
      ")\"} }\n"
      "_neuraldbgctl() {\n"
      "  local -a verbs=(\n",
      verbs,
      "  )\n"
      "  if (( CURRENT == 2 )); then _describe verb verbs; return; fi\n"
      "  local verb=$words[2]\n"
      "  shift words; (( CURRENT-- ))\n"
      "  case $verb in\n",
      cases,
      "  esac\n"
      "}\n"
      "compdef _neuraldbgctl neuraldbgctl\n");
}

std::string Fish() {
  std::string text = "# fish completion for neuraldbgctl\ncomplete -c neuraldbgctl -f\n";
  for (const VerbRow& verb : Verbs()) {
    const std::string name(verb.name);
    absl::StrAppend(&text, "complete -c neuraldbgctl -n __fish_use_subcommand -a ", name, " -d '", Quoted(verb.help),
                    "'\n");
    const std::string when = absl::StrCat("complete -c neuraldbgctl -n '__fish_seen_subcommand_from ", name, "'");
    for (const OptionRow& row : RowsOf(verb)) {
      std::string flags;
      for (const std::string& flag : FlagsOf(row)) {
        absl::StrAppend(&flags, flag.starts_with("--") ? " -l " : " -s ", flag.substr(flag.starts_with("--") ? 2 : 1));
      }
      if (flags.empty()) continue;
      std::string value = row.takes_value ? " -r -F" : "";
      if (!row.choices.empty()) value = absl::StrCat(" -r -f -a '", std::string(row.choices), "'");
      absl::StrAppend(&text, when, flags, value, " -d '", Quoted(row.help), "'\n");
    }
    if (TakesRun(verb))
      absl::StrAppend(&text, when, " -a \"(", absl::StrReplaceAll(kRunsCommand, {{"\"", "\\\""}}), ")\"\n");
    if (TakesShell(verb)) absl::StrAppend(&text, when, " -a 'bash zsh fish'\n");
    if (TakesRecording(verb)) absl::StrAppend(&text, when, " -F\n");
  }
  return text;
}

}  // namespace

std::string CompletionScript(const std::string& shell) {
  if (shell == "bash") return Bash();
  if (shell == "zsh") return Zsh();
  if (shell == "fish") return Fish();
  return "";
}

}  // namespace neuraldbg
