// Goal: what people read has no holes, no doubled names, and no number where nothing was measured. Method: every shape
// that a message can have (with and without site, module, statistic, note), printed and read by rules.
#include <gmock/gmock.h>

#include <limits>

#include "daemon/cli/tables.h"
#include "daemon/service/report.h"

namespace neuraldbg {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `line`: without the label in front and the line break.
void ExpectWhole(const std::string& line) {
  EXPECT_FALSE(line.empty());
  EXPECT_THAT(line, Not(::testing::StartsWith(" ")));
  EXPECT_THAT(line, Not(::testing::EndsWith(" ")));
  for (const char* broken : {"  ", "()", " ,", " :", ": :", ": ,", " in ,", " at :", "-> (", "nan", "-nan", "inf,",
                             "inf ", "expected ,", "expected  "}) {
    EXPECT_THAT(line, Not(HasSubstr(broken)));
  }
}

void ExpectWholeReport(const v1::Diagnosis& diagnosis) {
  constexpr std::size_t kLabelWidth = 9;
  const std::string text = RenderReport(diagnosis, {.width = 100'000, .color = false});
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string line = text.substr(begin, end - begin);
    ASSERT_GT(line.size(), kLabelWidth) << text;
    line.erase(0, kLabelWidth);
    if (line.starts_with("-> ")) line.erase(0, 3);
    // The parts of the verdict are two blanks apart.
    if (begin == 0) line.erase(0, line.find("  ") + 2);
    ExpectWhole(line);
  }
  if (::testing::Test::HasFailure()) FAIL() << text;
}

void SetExpectation(v1::Expectation& expected, const char* statistic, double low, double high) {
  expected.set_statistic(statistic);
  expected.set_low(low);
  expected.set_high(high);
}

// Kind, place and rank by number; everything that may be missing is missing in half of the numbers.
v1::Hypothesis HypothesisOf(int kind, const std::string& site, const std::string& module, int shape) {
  v1::Hypothesis hypothesis;
  hypothesis.set_kind(static_cast<v1::Hypothesis::Kind>(kind));
  hypothesis.set_site(site);
  hypothesis.set_module(module);
  hypothesis.set_rank(shape % 2 == 0 ? -1 : 3);
  hypothesis.set_step(41);
  hypothesis.set_summary("Step 41: something.");
  hypothesis.set_in_summary(true);
  const struct {
    const char* statistic;
    double observed, low, high;
  } measured[] = {{"", 0, 0, 0}, {"rms", 3.5, 0, 1}, {"loss", kNan, 0, 1}, {"", 3, 0.5, 2}, {"rms", 1, 2, kInfinity}};
  for (const auto& m : measured) {
    v1::Evidence* evidence = hypothesis.add_evidence();
    evidence->set_site(site);
    evidence->set_step(41);
    evidence->set_observed(m.observed);
    SetExpectation(*evidence->mutable_expected(), m.statistic, m.low, m.high);
    if (shape < 2 || *m.statistic == '\0') evidence->set_note("It is so.");
  }
  for (int i = 0; i < 2; ++i) {
    v1::ChainLink* link = hypothesis.add_chain();
    link->set_site(site);
    link->set_step(41);
    link->set_phase(v1::TrainingStep::OPTIMIZER);
    link->set_share(i * 0.5);
    if (shape < 2) link->set_note("it follows");
  }
  return hypothesis;
}

TEST(PrintedTextTest, AReportOfEveryShapeIsWhole) {
  for (int kind = 1; kind < v1::Hypothesis::Kind_ARRAYSIZE; ++kind) {
    for (const char* site : {"", "fc:output"}) {
      for (const char* module : {"", "fc"}) {
        for (int shape = 0; shape < 4; ++shape) {
          v1::Diagnosis diagnosis;
          diagnosis.set_run("gpt");
          diagnosis.set_verdict(v1::Diagnosis::FAULT);
          diagnosis.set_warm(shape % 2 == 0);
          if (shape > 1) diagnosis.set_step_consumed(false);
          *diagnosis.add_hypotheses() = HypothesisOf(kind, site, module, shape);
          v1::Notice* notice = diagnosis.add_notices();
          notice->set_kind(static_cast<v1::Hypothesis::Kind>(kind));
          notice->set_module(module);
          notice->set_text("Something is to be known.");
          v1::BlindSpot* spot = diagnosis.add_blind_spots();
          spot->set_site(site);
          spot->set_text("It is silent.");
          ExpectWholeReport(diagnosis);
        }
      }
    }
  }
}

TEST(PrintedTextTest, OnlyWhatTheDaemonMarkedIsPrinted) {
  v1::Diagnosis diagnosis;
  *diagnosis.add_hypotheses() = HypothesisOf(v1::Hypothesis::HANG, "", "first", 0);
  *diagnosis.add_hypotheses() = HypothesisOf(v1::Hypothesis::HANG, "", "second", 0);
  diagnosis.mutable_hypotheses(0)->set_in_summary(false);
  EXPECT_THAT(RenderReport(diagnosis), Not(HasSubstr("first")));
  EXPECT_THAT(RenderReport(diagnosis), HasSubstr("second"));
}

v1::Event EventOf(const char* site, const char* statistic, double value, double low, double high) {
  v1::Event event;
  event.set_site(site);
  event.set_severity(v1::Event::ERROR);
  event.mutable_transition()->set_from("HEALTHY");
  event.mutable_transition()->set_to("NONFINITE");
  event.set_value(value);
  SetExpectation(*event.mutable_expected(), statistic, low, high);
  return event;
}

TEST(PrintedTextTest, AnEventWithoutAValueShowsNone) {
  const std::string line = EventLine(EventOf("", "", 0, 0, 0));
  EXPECT_THAT(line, ::testing::EndsWith("ERROR    HEALTHY -> NONFINITE\n"));
  Table table = EventTable();
  AddEvent(EventOf("fc:output", "", 0, 0, 0), table);
  EXPECT_THAT(table.Render(0), Not(HasSubstr("NONFINITE  0")));
  EXPECT_THAT(table.Render(0), ::testing::ContainsRegex("NONFINITE +ERROR"));
}

TEST(PrintedTextTest, AnEventWithAValueShowsItAsEverywhere) {
  EXPECT_THAT(EventLine(EventOf("loss", "loss", kNan, 0.5, 1)), HasSubstr("loss NaN, expected 0.5 to 1\n"));
  EXPECT_THAT(EventLine(EventOf("fc:output", "rms", 2, 0, kInfinity)), HasSubstr("rms 2, expected at least 0\n"));
  EXPECT_THAT(EventLine(EventOf("fc:output", "nan", 12, 0, 0)), HasSubstr("nan 12, expected 0\n"));
}

TEST(PrintedTextTest, CountsAgreeWithTheirNouns) {
  v1::ListRunsResponse runs;
  EXPECT_EQ(CountedRuns(runs), "0 runs");
  runs.add_runs();
  EXPECT_EQ(CountedRuns(runs), "1 run");
  runs.add_runs();
  runs.set_next_page_token("2");
  EXPECT_EQ(CountedRuns(runs), "2 runs or more");
}

TEST(PrintedTextTest, AHealthyAnswerSaysWhatItDoesNotKnow) {
  v1::Diagnosis diagnosis;
  diagnosis.set_verdict(v1::Diagnosis::HEALTHY);
  EXPECT_THAT(RenderReport(diagnosis), HasSubstr("exact rules alone"));
  EXPECT_THAT(RenderReport(diagnosis), Not(HasSubstr("Nothing to do")));
  diagnosis.set_warm(true);
  EXPECT_THAT(RenderReport(diagnosis), HasSubstr("Nothing to do"));
  diagnosis.set_step_consumed(false);
  EXPECT_THAT(RenderReport(diagnosis), Not(HasSubstr("Nothing to do")));
}

}  // namespace
}  // namespace neuraldbg
