// Goal: the answers have exactly the JSON shapes that docs/api.md promises, and nobody sees another user's run.
// Method: a real store with known contents, asked as different callers.
#include "daemon/service/query.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "daemon/service/convert.h"
#include "daemon/service/report.h"
#include "daemon/service/run_topology.h"
#include "nlohmann/json.hpp"
#include "tests/daemon/service/filled_store.h"

namespace neuraldbg {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Caller kAdmin{0, true};
constexpr Caller kUser{kOwner, false};
constexpr Caller kOther{kStranger, false};

std::set<std::string> Keys(const json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

std::vector<std::string> RunNames(const v1::ListRunsResponse& response) {
  std::vector<std::string> names;
  for (const v1::Run& run : response.runs()) names.push_back(run.run());
  return names;
}

template <typename Request>
Request ForRun(const std::string& run) {
  Request request;
  request.set_run(run);
  return request;
}

class QueryTest : public ::testing::Test {
 protected:
  FilledStore filled_;
  std::unique_ptr<StoreReader> reader_ = filled_.Reader();
};

TEST_F(QueryTest, ListRuns_ShowsACallerItsOwnRunsAndTheAdminAll) {
  EXPECT_THAT(RunNames(*ListRuns(*reader_, kAdmin, {})), ElementsAre("gpt#2", "gpt", "other"));
  EXPECT_THAT(RunNames(*ListRuns(*reader_, kUser, {})), ElementsAre("gpt#2", "gpt"));
  EXPECT_THAT(RunNames(*ListRuns(*reader_, kOther, {})), ElementsAre("other"));
}

DaemonWarning FullDisk() {
  return {DaemonWarning::Kind::kNotStoring, 1'700'000'000'000'000'000, "Nothing has been stored since then.",
          "Make room."};
}

TEST_F(QueryTest, ListRuns_SaysOnItsFirstPageWhatKeepsTheDaemonFromRecording) {
  const DaemonWarning warnings[] = {FullDisk()};
  v1::ListRunsRequest request;
  request.set_page_size(2);
  const auto first = ListRuns(*reader_, kAdmin, request, warnings);
  ASSERT_EQ(first->warnings_size(), 1);
  EXPECT_EQ(first->warnings(0).kind(), v1::DaemonWarning::NOT_STORING);
  EXPECT_EQ(first->warnings(0).since().seconds(), 1'700'000'000);
  EXPECT_EQ(first->warnings(0).remedy(), "Make room.");
  request.set_page_token(first->next_page_token());
  EXPECT_EQ(ListRuns(*reader_, kAdmin, request, warnings)->warnings_size(), 0) << "pages are merged";
}

TEST_F(QueryTest, Diagnose_SaysThatNothingIsStoredWhereItMatters) {
  const DaemonWarning warnings[] = {FullDisk()};
  const auto notices = [&](const std::string& run) {
    return Diagnose(*reader_, kAdmin, ForRun<v1::DiagnoseRequest>(run), warnings)->diagnosis().notices();
  };
  ASSERT_EQ(notices("gpt#2").size(), 1) << "it goes on";
  EXPECT_THAT(notices("gpt#2")[0].text(), HasSubstr("Nothing has been stored"));
  EXPECT_THAT(notices("gpt#2")[0].text(), HasSubstr("Make room."));
  EXPECT_EQ(notices("gpt#1").size(), 0) << "it is stored to its end";
  filled_.EndRun();
  EXPECT_EQ(notices("gpt#2").size(), 0);
  EXPECT_EQ(notices("").size(), 1) << "the newest run may be one that is not stored";
}

TEST_F(QueryTest, Diagnose_SaysInTheDiagnosisItselfWhetherTheStepWentIn) {
  v1::DiagnoseRequest request = ForRun<v1::DiagnoseRequest>("gpt#2");
  EXPECT_FALSE(Diagnose(*reader_, kAdmin, request)->diagnosis().has_step_consumed()) << "nobody waited";
  request.set_wait_step(0);
  EXPECT_THAT(ToJson(Diagnose(*reader_, kAdmin, request)->diagnosis()), HasSubstr("\"stepConsumed\": true"));
  request.set_wait_step(1000);
  EXPECT_THAT(ToJson(Diagnose(*reader_, kAdmin, request)->diagnosis()), HasSubstr("\"stepConsumed\": false"));
}

TEST_F(QueryTest, Diagnose_MarksTheCausesThatAreWorthReading) {
  const auto cause = [](std::uint32_t incident, double confidence) {
    Hypothesis hypothesis;
    hypothesis.incident = incident;
    hypothesis.confidence = confidence;
    return hypothesis;
  };
  const auto marked = [&](std::vector<Hypothesis> hypotheses) {
    const absl::StatusOr<StoredRun> run = reader_->FindRun("gpt");
    absl::StatusOr<RunTopology> topology = RunTopology::Load(*reader_, *run);
    Diagnosis diagnosis;
    diagnosis.hypotheses = std::move(hypotheses);
    std::vector<int> positions;
    const v1::Diagnosis message = ToProto(diagnosis, *run, *topology);
    for (int i = 0; i < message.hypotheses_size(); ++i) {
      if (message.hypotheses(i).in_summary()) positions.push_back(i);
    }
    return positions;
  };
  EXPECT_THAT(marked({cause(0, 0.001)}), ElementsAre(0)) << "the leading one always";
  EXPECT_THAT(marked({cause(1, 0.9), cause(1, 0.5), cause(0, 0.009), cause(2, 0.01)}), ElementsAre(0, 3));
  EXPECT_THAT(marked({cause(0, 1), cause(1, 1), cause(2, 1), cause(3, 1), cause(4, 1), cause(5, 1)}),
              ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(QueryTest, ListRuns_PagesUntilTheTokenIsAbsent) {
  v1::ListRunsRequest request;
  request.set_page_size(2);
  const auto first = ListRuns(*reader_, kAdmin, request);
  ASSERT_TRUE(first->has_next_page_token());
  request.set_page_token(first->next_page_token());
  const auto second = ListRuns(*reader_, kAdmin, request);
  EXPECT_THAT(RunNames(*second), ElementsAre("other"));
  EXPECT_FALSE(second->has_next_page_token());
  request.set_page_token("x");
  EXPECT_THAT(std::string(ListRuns(*reader_, kAdmin, request).status().message()), HasSubstr("page_token"));
}

TEST_F(QueryTest, ResolveRun_FindsLaunchesAndHidesForeignRuns) {
  for (const Caller& caller : {kAdmin, kUser}) {
    EXPECT_EQ(ResolveRun(*reader_, caller, "gpt")->display_name, "gpt#2");
    EXPECT_EQ(ResolveRun(*reader_, caller, "gpt#1")->display_name, "gpt");
    EXPECT_EQ(ResolveRun(*reader_, caller, "gpt#2")->display_name, "gpt#2");
    EXPECT_EQ(ResolveRun(*reader_, caller, "")->display_name, "gpt#2");
    EXPECT_TRUE(absl::IsNotFound(ResolveRun(*reader_, caller, "gpt#3").status()));
  }
  EXPECT_TRUE(absl::IsNotFound(ResolveRun(*reader_, kOther, "gpt").status()));
  EXPECT_EQ(ResolveRun(*reader_, kOther, "gpt").status(),
            ResolveRun(*reader_, kUser, "gpt").ok() ? absl::NotFoundError("There is no run 'gpt'.") : absl::OkStatus());
}

TEST_F(QueryTest, Json_OfRanksSitesSeriesAndEventsIsTheContract) {
  const json ranks = json::parse(ToJson(*ListRanks(*reader_, kUser, ForRun<v1::ListRanksRequest>("gpt#1"))));
  EXPECT_EQ(Keys(ranks), std::set<std::string>({"ranks"}));
  EXPECT_EQ(Keys(ranks["ranks"][0]),
            std::set<std::string>({"rank", "incarnation", "host", "pid", "state", "lastStep", "lastSite",
                                   "recordsProduced", "recordsReceived", "recordsDropped"}));
  EXPECT_EQ(ranks["ranks"][0]["rank"], 0) << "defaults are printed";
  EXPECT_EQ(ranks["ranks"][1]["recordsProduced"], 5 * kStepsStored) << "a number, not a string";
  EXPECT_EQ(ranks["ranks"][1]["lastSite"], "step");

  const json sites = json::parse(ToJson(*ListSites(*reader_, kUser, ForRun<v1::ListSitesRequest>("gpt#1"))));
  EXPECT_EQ(Keys(sites), std::set<std::string>({"sites"}));
  ASSERT_EQ(sites["sites"].size(), 6u);
  EXPECT_EQ(sites["sites"][0], json({{"site", "fc:output"},
                                     {"module", "fc"},
                                     {"phase", "FORWARD"},
                                     {"kind", "TENSOR"},
                                     {"records", 2 * kStepsStored},
                                     {"lastStep", kStepsStored - 1},
                                     {"state", "REPORTING"},
                                     {"level", "FUSED"}}));
  EXPECT_EQ(sites["sites"][1]["state"], "NOT_OBSERVED");
  EXPECT_EQ(sites["sites"][1]["level"], "NO_LEVEL");
  EXPECT_EQ(sites["sites"][5]["state"], "SILENT");

  const json events = json::parse(ToJson(*ListEvents(*reader_, kUser, ForRun<v1::ListEventsRequest>("gpt#1"))));
  EXPECT_EQ(Keys(events), std::set<std::string>({"events"}));
  EXPECT_EQ(Keys(events["events"][0]), std::set<std::string>({"id", "step", "rank", "site", "module", "phase",
                                                              "transition", "value", "expected", "severity"}));
  EXPECT_EQ(events["events"][0]["transition"], json({{"from", "HEALTHY"}, {"to", "NONFINITE"}}));
  EXPECT_EQ(events["events"][0]["value"], "NaN");
  EXPECT_EQ(events["events"][0]["expected"], json({{"statistic", "loss"}, {"low", 0.0}, {"high", 1.0}}));

  auto request = ForRun<v1::QuerySeriesRequest>("gpt#1");
  request.add_sites("loss");
  request.set_rank(0);
  const json series = json::parse(ToJson(*QuerySeries(*reader_, kUser, request)));
  EXPECT_EQ(Keys(series), std::set<std::string>({"series"}));
  ASSERT_EQ(series["series"].size(), 1u);
  EXPECT_EQ(Keys(series["series"][0]),
            std::set<std::string>({"site", "module", "phase", "rank", "statistic", "points"}));
  EXPECT_EQ(series["series"][0]["points"][0], json({{"step", 0}, {"value", 0.5}}));
  EXPECT_EQ(series["series"][0]["points"][7], json({{"step", 7}, {"value", "NaN"}}));
}

TEST_F(QueryTest, Diagnose_NamesSitesOfTheRankAndPrintsEveryField) {
  const auto response = Diagnose(*reader_, kUser, ForRun<v1::DiagnoseRequest>("gpt#1"));
  ASSERT_TRUE(response.ok()) << response.status();
  const json diagnosis = json::parse(ToJson(response->diagnosis()));
  EXPECT_EQ(Keys(diagnosis), std::set<std::string>({"run", "verdict", "hypotheses", "notices", "blindSpots", "warm",
                                                    "stepsSeen", "ranksSeen"}));
  EXPECT_EQ(diagnosis["verdict"], "FAULT");
  const json& hypothesis = diagnosis["hypotheses"][0];
  EXPECT_EQ(Keys(hypothesis), std::set<std::string>({"incident", "kind", "module", "site", "rank", "step",
                                                     "detectedAtStep", "phase", "confidence", "summary", "evidence",
                                                     "chain", "equivalents", "remedy", "inSummary"}));
  EXPECT_EQ(hypothesis["site"], "loss");
  EXPECT_EQ(hypothesis["rank"], -1);
  EXPECT_EQ(hypothesis["module"], "");
  EXPECT_EQ(hypothesis["evidence"][0]["observed"], "Infinity");
  EXPECT_EQ(hypothesis["chain"][0]["site"], "fc:output");
  EXPECT_EQ(hypothesis["chain"][0]["module"], "fc");
  EXPECT_EQ(diagnosis["blindSpots"][0]["site"], "fc.weight");
}

TEST_F(QueryTest, ARunIsNamedByItsLaunchToo) {
  const auto display_name = [this](const Caller& caller, const std::string& name) {
    const auto response = GetRun(*reader_, caller, ForRun<v1::GetRunRequest>(name));
    return response.ok() ? response->run().run() : std::string(response.status().message());
  };
  const std::vector<StoredRun> runs = *reader_->ListRuns();
  for (const StoredRun& run : runs) {
    const std::string name = run.name + "@" + run.launch;
    EXPECT_EQ(display_name(kAdmin, name), run.display_name);
    EXPECT_EQ(display_name(kUser, name) == run.display_name, kUser.Sees(run));
  }
  EXPECT_THAT(display_name(kAdmin, runs.front().name + "@elsewhere"), HasSubstr("has no launch 'elsewhere'"));
  EXPECT_THAT(display_name(kAdmin, "nobodys@elsewhere"), HasSubstr("no run 'nobodys'"));
}

TEST_F(QueryTest, Diagnose_SaysWhetherTheStepWasConsumed) {
  auto request = ForRun<v1::DiagnoseRequest>("gpt#2");
  request.set_wait_step(0);
  EXPECT_TRUE(Diagnose(*reader_, kUser, request)->step_consumed());
  request.set_wait_step(1);
  EXPECT_FALSE(Diagnose(*reader_, kUser, request)->step_consumed()) << "it runs, and step 1 may still come";
  filled_.AdvanceUndiagnosed(1);
  EXPECT_FALSE(Diagnose(*reader_, kUser, request)->step_consumed()) << "stored, but not in the diagnosis yet";
  request.set_run("gpt#1");
  request.set_wait_step(1000);
  bool more_to_come = true;
  EXPECT_FALSE(DiagnoseSoFar(*reader_, kUser, request, {}, more_to_come)->step_consumed()) << "it ended before step 1";
  EXPECT_FALSE(more_to_come) << "its ranks ended: waiting would not help";
  request.set_wait_rank(9);
  EXPECT_FALSE(DiagnoseSoFar(*reader_, kUser, request, {}, more_to_come)->step_consumed()) << "nobody has seen rank 9";
  EXPECT_FALSE(more_to_come) << "nor will anybody: the run has ended";
}

TEST_F(QueryTest, QuerySeries_SelectsModulesRangesAndStatistics) {
  auto request = ForRun<v1::QuerySeriesRequest>("gpt#1");
  request.add_sites("fc");
  request.set_statistic("rms");
  request.set_from_step(3);
  request.set_to_step(5);
  const auto response = QuerySeries(*reader_, kUser, request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->series_size(), 6) << "three sites of the module on two ranks";
  EXPECT_EQ(response->series(0).site(), "fc:output");
  ASSERT_EQ(response->series(0).points_size(), 3);
  EXPECT_EQ(response->series(0).points(2).value(), 5.0f);
  EXPECT_EQ(response->series(3).rank(), 1u);
  EXPECT_EQ(response->series(3).points(2).value(), 50.0f);
}

TEST_F(QueryTest, BadArgument_IsNamed) {
  auto series = ForRun<v1::QuerySeriesRequest>("gpt#1");
  series.set_statistic("no_such_thing");
  EXPECT_THAT(QuerySeries(*reader_, kUser, series).status(),
              absl::InvalidArgumentError("statistic: there is no statistic 'no_such_thing'."));
  series.clear_statistic();
  series.add_sites("nowhere");
  EXPECT_THAT(std::string(QuerySeries(*reader_, kUser, series).status().message()), HasSubstr("sites:"));
  series.clear_sites();
  series.set_from_step(5);
  series.set_to_step(4);
  EXPECT_THAT(std::string(QuerySeries(*reader_, kUser, series).status().message()), HasSubstr("from_step"));
  auto sites = ForRun<v1::ListSitesRequest>("gpt#1");
  sites.set_rank(7);
  EXPECT_EQ(ListSites(*reader_, kUser, sites).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(QueryTest, ListEvents_PagesByIdWithoutGapOrRepeat) {
  auto request = ForRun<v1::ListEventsRequest>("gpt#1");
  request.set_page_size(10);
  std::uint64_t expected = 1;
  for (int pages = 1;; ++pages) {
    const auto page = ListEvents(*reader_, kUser, request);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const v1::Event& event : page->events()) EXPECT_EQ(event.id(), expected++);
    if (!page->has_next_page_token()) {
      EXPECT_EQ(pages, 3);
      break;
    }
    request.set_page_token(page->next_page_token());
  }
  EXPECT_EQ(expected, kEventsStored + 1);
}

TEST_F(QueryTest, Heatmap_KeepsExtremesAndMarksNonfiniteCells) {
  auto request = ForRun<v1::HeatmapRequest>("gpt#1");
  request.set_statistic("loss");
  request.set_columns(10);
  const auto loss = Heatmap(*reader_, kUser, request);
  ASSERT_TRUE(loss.ok()) << loss.status();
  ASSERT_EQ(loss->steps_size(), 10);
  ASSERT_EQ(loss->rows_size(), 1);
  EXPECT_TRUE(loss->rows(0).cells(3).nonfinite()) << "steps 6 and 7";
  EXPECT_FALSE(loss->rows(0).cells(2).nonfinite());
  request.set_statistic("rms");
  const auto rms = Heatmap(*reader_, kUser, request);
  EXPECT_EQ(rms->rows(0).site(), "fc:output");
  EXPECT_EQ(rms->rows(0).cells(9).value(), 19.0f);
}

TEST_F(QueryTest, CausalGraph_ClosesTheStepFromForwardToParameterToNextForward) {
  const auto response = GetCausalGraph(*reader_, kUser, ForRun<v1::GetCausalGraphRequest>("gpt#1"));
  ASSERT_TRUE(response.ok()) << response.status();
  std::set<std::string> edges;
  for (const v1::CausalEdge& edge : response->graph().edges()) {
    edges.insert(edge.from() + (edge.next_step() ? " => " : " -> ") + edge.to());
  }
  EXPECT_EQ(edges, std::set<std::string>({"fc:output -> loss", "loss -> fc:output.grad", "fc:output.grad -> fc.weight",
                                          "fc.weight => fc:output"}));
}

TEST(ConvertTest, EveryKindVerdictAndPhaseHasItsProtoValue) {
#define X(name) \
  EXPECT_EQ(v1::Hypothesis::Kind_Name(ToProto(HypothesisKind::name)), HypothesisKindName(HypothesisKind::name));
  NEURALDBG_HYPOTHESIS_KINDS(X)
#undef X
  for (const Verdict verdict : {Verdict::HEALTHY, Verdict::FAULT, Verdict::INCOMPLETE_DATA, Verdict::UNSURE}) {
    EXPECT_EQ(v1::Diagnosis::Verdict_Name(ToProto(verdict)), VerdictName(verdict));
  }
  std::set<int> phases;
  for (std::uint8_t phase = 0; phase < kPhaseCount; ++phase) phases.insert(ToProto(static_cast<Phase>(phase)));
  EXPECT_EQ(phases.size(), std::size_t{kPhaseCount});
  EXPECT_FALSE(phases.contains(v1::TrainingStep::UNSPECIFIED));
}

TEST(ConvertTest, StepsBeyond32BitsSaturate) { EXPECT_EQ(ToStep(std::uint64_t{1} << 40), 0xffffffffu); }

TEST_F(QueryTest, Report_SaysVerdictWhyAndNextWithinTheWidth) {
  const auto response = Diagnose(*reader_, kUser, ForRun<v1::DiagnoseRequest>("gpt#1"));
  const std::string text = RenderReport(response->diagnosis(), {.width = 60, .color = false});
  for (const char* part : {"Verdict  FAULT", "NONFINITE_LOSS", "Why ", "Next     Guard the logarithm.", "75 %"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 60u) << text.substr(begin, end - begin);
  }
  EXPECT_THAT(RenderReport(response->diagnosis(), {.width = 80, .color = true}), HasSubstr("\x1b["));
}

TEST_F(QueryTest, WriteReport_LeavesJsonAndTextUnderSafeNames) {
  StoredRun run = *ResolveRun(*reader_, kUser, "gpt#1");
  const std::string directory = filled_.directory() + "/reports";
  ASSERT_TRUE(WriteReport(*reader_, run, directory).ok());
  std::ifstream file(directory + "/gpt.json");
  EXPECT_EQ(json::parse(file)["verdict"], "FAULT");
  EXPECT_TRUE(std::filesystem::exists(directory + "/gpt.txt"));
  run.display_name = "../../escape";
  ASSERT_TRUE(WriteReport(*reader_, run, directory).ok());
  EXPECT_TRUE(std::filesystem::exists(directory + "/_.._.._escape.txt"));
}

}  // namespace
}  // namespace neuraldbg
