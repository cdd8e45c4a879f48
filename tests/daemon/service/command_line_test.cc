// Goal: the command line is what docs/cli.md says, and tables fit. Method: the parser, the tables and the completion
// scripts by themselves.
#include <gmock/gmock.h>

#include "daemon/cli/arguments.h"
#include "daemon/cli/completion.h"
#include "daemon/cli/exit_codes.h"
#include "daemon/cli/output.h"
#include "daemon/cli/surroundings.h"

namespace neuraldbg {
namespace {

using ::testing::HasSubstr;

Arguments Parse(const std::vector<std::string>& words) {
  const absl::StatusOr<ParsedArguments> parsed = ParseArguments(words);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->arguments : Arguments{};
}

TEST(ArgumentsTest, RunIsPositionalOrAnOption) {
  EXPECT_EQ(Parse({"diagnose", "gpt#2"}).run, "gpt#2");
  EXPECT_EQ(Parse({"diagnose", "--run", "gpt#2"}).run, "gpt#2");
  EXPECT_EQ(Parse({"diagnose"}).run, "");
}

TEST(ArgumentsTest, GlobalOptionsStandAnywhere) {
  EXPECT_EQ(Parse({"-o", "json", "ranks", "gpt"}).format, OutputFormat::kJson);
  EXPECT_EQ(Parse({"ranks", "gpt", "-o", "jsonl"}).format, OutputFormat::kJsonl);
  EXPECT_EQ(Parse({"ranks", "gpt", "--output=json"}).format, OutputFormat::kJson);
  EXPECT_EQ(Parse({"--address", "status", "runs"}).address, "status");
}

TEST(ArgumentsTest, SeriesTakesAllItsOptions) {
  const Arguments arguments = Parse({"series", "gpt", "--site", "a", "--site", "b", "--statistic", "rms", "--rank", "1",
                                     "--from", "3", "--to", "9", "--max-points", "5"});
  EXPECT_THAT(arguments.sites, ::testing::ElementsAre("a", "b"));
  EXPECT_EQ(arguments.from_step, 3u);
  EXPECT_EQ(arguments.to_step, 9u);
  EXPECT_EQ(arguments.rank, 1u);
}

TEST(ArgumentsTest, Mistakes_AreUsageErrorsThatNameTheWord) {
  const std::vector<std::vector<std::string>> mistakes = {{"dignose"},
                                                          {"--frobnicate"},
                                                          {"runs", "-o", "xml"},
                                                          {"series", "gpt", "--from", "y"},
                                                          {"runs", "--follow"},
                                                          {"completion", "tcsh"},
                                                          {"ranks", "gpt", "extra"},
                                                          {"series", "--from", "-1"},
                                                          {"top", "--interval", "0"},
                                                          {"top", "--interval", "nan"},
                                                          {"top", "--count", "0"},
                                                          {"top", "--count", "-3"},
                                                          {"series", "--max-points", "0"},
                                                          {"series", "--max-points", "1.5"},
                                                          {"series", "--to", "010x"},
                                                          {"series", "--rank", "4294967296"},
                                                          {"diagnose", "--wait-step", "-1"},
                                                          {"diagnose", "--timeout", "nan"},
                                                          {"diagnose", "--timeout", "inf"},
                                                          {"diagnose", "--timeout", "-1"},
                                                          {"diagnose", "--timeout", "soon"}};
  for (const auto& words : mistakes) {
    const absl::Status status = ParseArguments(words).status();
    EXPECT_EQ(ExitCodeOf(status), kExitUsage) << words.back();
    EXPECT_THAT(std::string(status.message()), HasSubstr(words.back()));
  }
  EXPECT_EQ(ExitCodeOf(ParseArguments({}).status()), kExitUsage);
}

TEST(ArgumentsTest, AnEmptyWordIsNoDefault) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"diagnose", ""},       {"diagnose", "--run", ""},     {"series", "--site", ""},
      {"runs", "--file", ""}, {"runs", "--address", ""},     {"runs", "--data-dir", ""},
      {"runs", "-o", ""},     {"series", "--statistic", ""}, {"runs", "--token-file", ""}};
  for (const auto& words : mistakes) {
    const absl::Status status = ParseArguments(words).status();
    EXPECT_EQ(ExitCodeOf(status), kExitUsage) << words[1];
    EXPECT_THAT(std::string(status.message()), HasSubstr("must not be empty")) << words[1];
  }
}

TEST(ArgumentsTest, NumbersAreDecimal) {
  EXPECT_EQ(Parse({"series", "--from", "010"}).from_step, 10u);
  EXPECT_EQ(Parse({"diagnose", "--wait-step", "3", "--timeout", "0.5"}).timeout_s, 0.5);
}

TEST(ArgumentsTest, WhatWouldMeanNothing_IsRefused) {
  for (const char* option : {"--rank", "--timeout"}) {
    const absl::Status status = ParseArguments({"diagnose", "gpt", option, "5"}).status();
    EXPECT_EQ(ExitCodeOf(status), kExitUsage) << option;
    EXPECT_EQ(status.message(), std::string(option) + " means nothing without --wait-step");
  }
}

TEST(ArgumentsTest, OneRunIsAskedFor) {
  const absl::Status two = ParseArguments({"diagnose", "a", "--run", "b"}).status();
  EXPECT_EQ(ExitCodeOf(two), kExitUsage);
  EXPECT_THAT(std::string(two.message()), ::testing::StartsWith("one run can be asked for, as RUN or with --run ("));
  const absl::Status again = ParseArguments({"series", "--rank", "1", "--rank", "2"}).status();
  EXPECT_THAT(std::string(again.message()), ::testing::StartsWith("--rank can be given once ("));
}

TEST(ArgumentsTest, OneAnswerHasOneFormat) {
  for (const char* format : {"json", "jsonl"}) {
    const absl::Status status = ParseArguments({"graph", "--mermaid", "-o", format}).status();
    EXPECT_EQ(ExitCodeOf(status), kExitUsage);
    EXPECT_THAT(std::string(status.message()), HasSubstr("drop one of them"));
  }
  EXPECT_TRUE(Parse({"graph", "--mermaid", "-o", "table"}).mermaid);
}

TEST(ArgumentsTest, VerbsOfLaterReleases_AreNotListedAndSayWhatTheyAre) {
  const std::string help = *ParseArguments({"--help"})->print;
  for (const char* verb : {"compare"}) {
    EXPECT_THAT(help, ::testing::Not(HasSubstr(verb)));
    const absl::Status status = ParseArguments({verb, "gpt"}).status();
    EXPECT_EQ(ExitCodeOf(status), kExitUsage);
    EXPECT_THAT(std::string(status.message()), HasSubstr("not part of this release"));
  }
}

TEST(ArgumentsTest, AnExportedRunIsAFile) {
  EXPECT_EQ(Parse({"replay", "gpt.run"}).recording, "gpt.run");
  EXPECT_EQ(Parse({"import", "gpt.run"}).recording, "gpt.run");
  EXPECT_TRUE(Parse({"export", "gpt", "--file", "gpt.run", "--force"}).force);
  for (const auto& words : {std::vector<std::string>{"replay"}, {"import"}, {"export", "gpt"}, {"replay", "f", "g"}}) {
    EXPECT_EQ(ExitCodeOf(ParseArguments(words).status()), kExitUsage) << words.front();
  }
  EXPECT_THAT(std::string(ParseArguments({"export", "gpt"}).status().message()), HasSubstr("--file"));
}

TEST(ArgumentsTest, AnOptionInFrontOfTheVerb_IsNotCalledUnknown) {
  EXPECT_THAT(std::string(ParseArguments({"--rank", "1", "sites"}).status().message()), HasSubstr("behind a verb"));
}

TEST(SurroundingsTest, AnAddressThatIsNone_IsAUsageErrorThatNamesTheForms) {
  for (const char* address : {"garbage", "host:", ":7433", "host:0", "host:99999", "unix:relative", "http://h:1"}) {
    Arguments arguments = Parse({"runs", "--address", address});
    const absl::Status status = ApplySurroundings(arguments);
    EXPECT_EQ(ExitCodeOf(status), kExitUsage) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
    EXPECT_THAT(std::string(status.message()), HasSubstr("--address"));
  }
  for (const char* address : {"unix:/run/d.sock", "unix:///run/d.sock", "localhost:7433", "[::1]:7433"}) {
    Arguments arguments = Parse({"runs", "--address", address});
    EXPECT_TRUE(ApplySurroundings(arguments).ok()) << address;
  }
}

TEST(ArgumentsTest, HelpAndVersionArePrinted) {
  EXPECT_THAT(*ParseArguments({"--help"})->print, HasSubstr("diagnose"));
  EXPECT_THAT(*ParseArguments({"series", "--help"})->print, HasSubstr("--statistic"));
  EXPECT_THAT(*ParseArguments({"--version"})->print, HasSubstr(NEURALDBG_VERSION));
}

TEST(CompletionTest, EveryVerbAndOptionIsInEveryScript) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = CompletionScript(shell);
    for (const VerbRow& verb : Verbs()) {
      EXPECT_THAT(script, HasSubstr(std::string(verb.name))) << shell;
      for (const Option option : verb.options) {
        const std::string names(RowOf(option).names);
        const std::size_t dashes = names.find("--");
        if (dashes == std::string::npos) continue;
        EXPECT_THAT(script, HasSubstr(names.substr(dashes + 2))) << shell;
      }
    }
  }
}

TEST(TableTest, FitsTheWidthByCuttingTheWidestText) {
  Table table({{"SITE"}, {"STEP", true}});
  table.AddRow({"transformer.blocks.11.attention.projection:output", "123456"});
  const std::string cut = table.Render(40);
  for (std::size_t begin = 0, end; (end = cut.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 40u + 2) << "the ellipsis has three bytes";
  }
  EXPECT_THAT(cut, HasSubstr("123456"));
  EXPECT_THAT(cut, HasSubstr(":output")) << "the end of a name tells more than its middle";
  EXPECT_THAT(table.Render(0), HasSubstr("transformer.blocks.11.attention.projection:output"));
}

TEST(ExitCodeTest, AreTheDocumentedNumbers) {
  EXPECT_EQ(ExitCodeOf(v1::Diagnosis::HEALTHY), 0);
  EXPECT_EQ(ExitCodeOf(v1::Diagnosis::FAULT), 1);
  EXPECT_EQ(ExitCodeOf(v1::Diagnosis::UNSURE), 5);
  EXPECT_EQ(ExitCodeOf(v1::Diagnosis::INCOMPLETE_DATA), 5);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 4);
}

}  // namespace
}  // namespace neuraldbg
