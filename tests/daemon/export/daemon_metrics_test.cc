// The metrics of a daemon with known counts, runs and warnings.
#include "daemon/export/daemon_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

bool Everything(const StoredRun&) { return true; }

class DaemonMetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = Store::Open(directory_.path());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  StoredRun Run(const std::string& name, std::uint32_t uid = 1000) {
    return *store_->AdoptRun(uid, name, "launch", 1, "torch");
  }
  DaemonMetrics Metrics() {
    MetricSources sources;
    sources.ingest = &ingest_;
    sources.warnings = &warnings_;
    sources.open_reader = [this] { return Store::OpenReadOnly(directory_.path()); };
    sources.data_directory = directory_.path();
    return DaemonMetrics(std::move(sources));
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Store> store_;
  IngestCounters ingest_;
  DaemonWarnings warnings_;
};

TEST(PrometheusTextTest, LabelsAndHelp_AreEscaped) {
  PrometheusText text;
  text.Metric("m", PrometheusText::Type::kCounter, "a\\b\nc");
  text.Sample({{"l", "a\\b\"c\nd"}, {"k", "v"}}, 1.5);
  text.Sample(std::numeric_limits<double>::infinity());
  text.Sample(1e15 + 1);
  EXPECT_EQ(
      text.text(),
      "# HELP m a\\\\b\\nc\n# TYPE m counter\nm{l=\"a\\\\b\\\"c\\nd\",k=\"v\"} 1.5\nm +Inf\nm 1000000000000001\n");
}

TEST_F(DaemonMetricsTest, CountsOfIngest_AreThere) {
  ingest_.slots_drained = 7;
  ingest_.segments_live = 3;
  ingest_.lanes_quarantined = 2;
  ingest_.segments_refused[static_cast<std::size_t>(Errc::kBadMagic)] = 5;
  warnings_.NotStoring({});
  const std::string text = Metrics().Text(Everything);
  for (const char* line :
       {"\nneuraldbg_ring_slots_drained_total 7\n", "\nneuraldbg_segments_live 3\n",
        "\nneuraldbg_lanes_quarantined 2\n", "\nneuraldbg_segments_refused_total{reason=\"magic\"} 5\n",
        "\nneuraldbg_warnings{kind=\"not_storing\"} 1\n", "\nneuraldbg_warnings{kind=\"segment_left_alone\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(DaemonMetricsTest, OtherLayouts_AreNamedOnceAndBounded) {
  for (std::uint16_t major = 2; major < 60; ++major) {
    ingest_.other_layouts.Add({major, 1});
    ingest_.other_layouts.Add({major, 1});
    ASSERT_EQ(ingest_.other_layouts.All().size(), std::min<std::size_t>(major - 1U, OtherLayouts::kMax));
  }
  EXPECT_EQ(ingest_.other_layouts.All().size(), OtherLayouts::kMax);
  EXPECT_THAT(Metrics().Text(Everything), HasSubstr("{segment_layout=\"2.1\",daemon_layout=\"1.0\"} 1\n"));
}

TEST_F(DaemonMetricsTest, LiveRun_HasRecordsStepsAndOneVerdict) {
  const StoredRun run = Run("gpt");
  Commit commit = CommitOf({.run_id = run.id, .rank = 0, .incarnation = 0}, {}, 0);
  commit.rank.records_produced = 100;
  commit.rank.records_received = 90;
  commit.rank.records_dropped = 7;
  ASSERT_TRUE(store_->Apply(commit).ok());
  DaemonMetrics metrics = Metrics();
  const std::string text = metrics.Text(Everything);
  for (const char* line :
       {"\nneuraldbg_run_records_received_total{run=\"gpt\"} 90\n",
        "\nneuraldbg_run_records_dropped_total{run=\"gpt\"} 7\n",
        "\nneuraldbg_run_records_corrupt_total{run=\"gpt\"} 3\n", "\nneuraldbg_runs{state=\"running\"} 1\n",
        "\nneuraldbg_run_verdict{run=\"gpt\",verdict=\"INCOMPLETE_DATA\"} 1\n",
        "\nneuraldbg_run_verdict{run=\"gpt\",verdict=\"FAULT\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  ASSERT_TRUE(store_->SetRunState(run.id, RunState::kDied).ok());
  const std::string after = metrics.Text(Everything);
  EXPECT_THAT(after, HasSubstr("\nneuraldbg_runs{state=\"died\"} 1\n"));
  EXPECT_THAT(after, Not(HasSubstr("run=\"gpt\""))) << "a run that has ended has no series of its own";
}

TEST_F(DaemonMetricsTest, ManyLiveRuns_AreBoundedAndTheRestCounted) {
  for (std::size_t i = 0; i < DaemonMetrics::kRunsMax + 4; ++i) Run("run" + std::to_string(i));
  const std::string text = Metrics().Text(Everything);
  EXPECT_THAT(text, HasSubstr("\nneuraldbg_runs_suppressed 4\n"));
  EXPECT_THAT(text, HasSubstr("run=\"run19\"")) << "the newest are shown";
  EXPECT_THAT(text, Not(HasSubstr("run=\"run3\"")));
}

TEST_F(DaemonMetricsTest, RunsOfOthers_AreNotTold) {
  Run("mine", 1000);
  Run("theirs", 2000);
  const std::string text = Metrics().Text([](const StoredRun& run) { return run.owner_uid == 1000; });
  EXPECT_THAT(text, HasSubstr("run=\"mine\""));
  EXPECT_THAT(text, Not(HasSubstr("theirs")));
  EXPECT_THAT(text, HasSubstr("\nneuraldbg_runs{state=\"running\"} 1\n"));
}

TEST_F(DaemonMetricsTest, AStoreThatCannotBeRead_LeavesTheRest) {
  MetricSources sources;
  sources.ingest = &ingest_;
  sources.warnings = &warnings_;
  sources.open_reader = [] { return absl::UnavailableError("gone"); };
  const std::string text = DaemonMetrics(std::move(sources)).Text(Everything);
  EXPECT_THAT(text, HasSubstr("\nneuraldbg_uptime_seconds "));
  EXPECT_THAT(text, EndsWith("\nneuraldbg_store_readable 0\n"));
}

}  // namespace
}  // namespace neuraldbg
