// The command line of neuraldbgctl: one table of verbs and options, from which the parser, the help texts and the shell
// completions are made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace neuraldbg {

enum class OutputFormat : std::uint8_t { kTable, kJson, kJsonl };

// Everything a verb may ask for; which of it a verb takes is in its row of Verbs().
struct Arguments {
  std::string verb;
  std::string run;  // empty: the newest
  OutputFormat format = OutputFormat::kTable;
  std::string file;            // empty: standard output
  std::string address;         // empty: environment, then the default socket
  std::string data_directory;  // empty: environment, then the default
  std::string token_file;
  bool follow = false;
  bool mermaid = false;
  std::optional<std::uint32_t> wait_step, rank, from_step, to_step;
  std::vector<std::string> sites;
  std::string statistic;
  std::uint32_t max_points = 0;  // 0: full detail
  std::optional<double> timeout_s;
  double interval_s = 1;
  std::optional<std::uint32_t> count;
  std::string shell;
  std::string recording;  // an exported run
  bool force = false;
};

enum class Option : std::uint8_t {
  kRun,
  kFollow,
  kMermaid,
  kWaitStep,
  kRank,
  kFromStep,
  kToStep,
  kSite,
  kStatistic,
  kMaxPoints,
  kTimeout,
  kInterval,
  kCount,
  kShell,
  kRecording,
  kForce,
  // Taken by every verb, before or after its name.
  kOutput,
  kFile,
  kAddress,
  kDataDirectory,
  kTokenFile,
};

struct OptionRow {
  Option option;
  std::string_view names;  // as CLI11 takes them; a name without dashes is a positional
  std::string_view help;
  std::string_view choices;  // space separated; empty: anything
  bool takes_value = true;
};

struct VerbRow {
  std::string_view name;
  std::string_view help;
  std::vector<Option> options;
};

std::span<const OptionRow> Options();
std::span<const VerbRow> Verbs();
const OptionRow& RowOf(Option option);
bool IsGlobal(Option option);

// What the command line asks for, or a text to print (--help, --version).
struct ParsedArguments {
  Arguments arguments;
  std::optional<std::string> print;
};

// INVALID_ARGUMENT with one sentence.
absl::StatusOr<ParsedArguments> ParseArguments(const std::vector<std::string>& command_line);

}  // namespace neuraldbg
