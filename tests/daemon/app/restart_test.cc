// A daemon killed with SIGKILL at random instants, again and again, ends with exactly what an undisturbed one stores:
// the same frames bit for bit, the same transitions, the same diagnosis.
#include <signal.h>

#include <bit>
#include <chrono>
#include <random>
#include <thread>

#include "tests/daemon/app/daemon_fixture.h"

namespace neuraldbg {
namespace {

constexpr const char* kSteps = "400";
constexpr const char* kNanStep = "100";
constexpr int kKills = 10;

struct Outcome {
  std::vector<StepFrame> frames;
  std::vector<Transition> transitions;
  Diagnosis diagnosis;
  std::vector<SiteSummary> totals;
  StoredRank rank;
};

Outcome Read(StoreReader& reader, const std::string& name) {
  Outcome outcome;
  const StoredRun run = reader.FindRun(name).value();
  outcome.rank = reader.ListRanks(run.id).value().at(0);
  outcome.frames = reader.ReadFrames(outcome.rank.key, 0, UINT64_MAX).value();
  outcome.transitions = reader.ListTransitions(run.id, 0, 100000).value();
  outcome.diagnosis = reader.GetDiagnosis(run.id).value();
  outcome.totals = reader.SiteTotals(outcome.rank.key).value();
  return outcome;
}

void ExpectSameFrames(const std::vector<StepFrame>& a, const std::vector<StepFrame>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].step, b[i].step);
    EXPECT_EQ(a[i].complete, b[i].complete) << a[i].step;
    EXPECT_EQ(a[i].records_received, b[i].records_received) << a[i].step;
    EXPECT_EQ(a[i].records_missing, b[i].records_missing) << a[i].step;
    ASSERT_EQ(a[i].samples.size(), b[i].samples.size()) << a[i].step;
    for (std::size_t s = 0; s < a[i].samples.size(); ++s) {
      const Sample &x = a[i].samples[s], &y = b[i].samples[s];
      ASSERT_EQ(x.site, y.site);
      EXPECT_EQ(x.present, y.present);
      EXPECT_EQ(x.bits, y.bits);
      for (std::size_t v = 0; v < kMaxStatistics; ++v) {
        if (((x.present >> v) & 1u) == 0) continue;
        EXPECT_EQ(std::bit_cast<std::uint32_t>(x.value[v]), std::bit_cast<std::uint32_t>(y.value[v])) << a[i].step;
      }
    }
  }
}

void ExpectSameTransitions(const std::vector<Transition>& a, const std::vector<Transition>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].id, b[i].id);
    EXPECT_EQ(a[i].step, b[i].step);
    EXPECT_EQ(a[i].site, b[i].site);
    EXPECT_EQ(a[i].statistic, b[i].statistic);
    EXPECT_EQ(a[i].from, b[i].from);
    EXPECT_EQ(a[i].to, b[i].to);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a[i].value), std::bit_cast<std::uint64_t>(b[i].value));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a[i].expected_high), std::bit_cast<std::uint64_t>(b[i].expected_high));
  }
}

void ExpectSameDiagnosis(const Diagnosis& a, const Diagnosis& b) {
  EXPECT_EQ(a.verdict, b.verdict);
  EXPECT_EQ(a.warm, b.warm);
  EXPECT_EQ(a.steps_seen, b.steps_seen);
  EXPECT_EQ(a.ranks_seen, b.ranks_seen);
  EXPECT_EQ(a.notices.size(), b.notices.size());
  EXPECT_EQ(a.blind_spots.size(), b.blind_spots.size());
  ASSERT_EQ(a.hypotheses.size(), b.hypotheses.size());
  for (std::size_t i = 0; i < a.hypotheses.size(); ++i) {
    const Hypothesis &x = a.hypotheses[i], &y = b.hypotheses[i];
    EXPECT_EQ(x.kind, y.kind);
    EXPECT_EQ(x.site, y.site);
    EXPECT_EQ(x.step, y.step);
    EXPECT_EQ(x.detected_at_step, y.detected_at_step);
    EXPECT_EQ(x.summary, y.summary);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(x.confidence), std::bit_cast<std::uint64_t>(y.confidence));
    EXPECT_EQ(x.evidence.size(), y.evidence.size());
    EXPECT_EQ(x.chain.size(), y.chain.size());
  }
}

class RestartTest : public DaemonFixture {};

TEST_F(RestartTest, TenKills_ChangeNothing) {
  auto daemon = StartDaemon();
  AwaitServing();
  EXPECT_EQ(StartProducer({"undisturbed", kSteps, "2000", kNanStep, "close"})->Wait(), 0);
  AwaitRunState("undisturbed", RunState::kFinished);

  const std::uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto producer = StartProducer({"disturbed", kSteps, "5000", kNanStep, "close"});
  producer->ReadLine();
  for (int kill = 0; kill < kKills; ++kill) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 250));
    daemon->Signal(SIGKILL);
    daemon->Wait();
    daemon = StartDaemon();
  }
  EXPECT_EQ(producer->Wait(), 0);
  AwaitRunState("disturbed", RunState::kFinished);

  const auto reader = OpenStore();
  const Outcome expected = Read(*reader, "undisturbed"), actual = Read(*reader, "disturbed");
  ASSERT_EQ(expected.frames.size(), 400u);
  EXPECT_FALSE(expected.transitions.empty());
  EXPECT_EQ(expected.diagnosis.verdict, Verdict::FAULT);
  ExpectSameFrames(expected.frames, actual.frames);
  ExpectSameTransitions(expected.transitions, actual.transitions);
  ExpectSameDiagnosis(expected.diagnosis, actual.diagnosis);
  EXPECT_EQ(actual.rank.records_received, expected.rank.records_received);
  EXPECT_EQ(actual.rank.records_dropped, 0u);
  ASSERT_EQ(actual.totals.size(), expected.totals.size());
  for (std::size_t i = 0; i < actual.totals.size(); ++i)
    EXPECT_EQ(actual.totals[i].records, expected.totals[i].records);
}

}  // namespace
}  // namespace neuraldbg
