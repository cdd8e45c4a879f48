// The store as the rest of the daemon sees it: what was applied is what is read, by the writer, by a reader beside it
// and by the next process. Every test uses a real database in a directory of its own.
#include "daemon/store/store.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {
namespace {

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Reopen(); }
  void Reopen() {
    store_.reset();
    auto opened = Store::Open(directory_.path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  StoredRun Adopt(const std::string& name, const std::string& launch = "launch-1") {
    auto run = store_->AdoptRun(1000, name, launch, 2, "torch 2.13.0");
    EXPECT_TRUE(run.ok()) << run.status();
    return run.ok() ? *run : StoredRun{};
  }
  void Apply(const Commit& commit) {
    const absl::Status applied = store_->Apply(commit);
    ASSERT_TRUE(applied.ok()) << applied;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, AStepIsWhatTheOptimizerEnded) {
  const StoredRun run = Adopt("gpt");
  const RankKey key{run.id, 0, 0};
  std::vector<StepFrame> frames(4);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    frames[i].rank = key;
    frames[i].step = i;
    frames[i].complete = true;
    Sample end;
    end.site = 0;
    end.kind = RecordKind::kStep;
    end.phase = Phase::kSystem;
    frames[i].samples = {end};
  }
  frames[1].applied = false;                           // the AMP scaler skipped it: a step all the same
  frames[2].samples.front().flags = kFlagUnannounced;  // an evaluation pass that detach() closed
  frames[3].complete = false;                          // cut off
  Apply(CommitOf(key, frames, 4));
  EXPECT_EQ(store_->FindRun("gpt")->steps_seen, 2u);
}

TEST_F(StoreTest, EveryFrameComesBackBitForBit) {
  const StoredRun run = Adopt("gpt");
  const RankKey key{run.id, 0, 0};
  FrameSource source(7, 20);
  std::vector<StepFrame> sent;
  for (std::uint64_t step = 0; step < 700;) {
    std::vector<StepFrame> batch;
    for (std::uint64_t i = 0; i <= step % 5; ++i) {
      batch.push_back(source.Next(key, step++));
    }
    sent.insert(sent.end(), batch.begin(), batch.end());
    Apply(CommitOf(key, batch, step));
  }
  auto read = store_->ReadFrames(key, 0, std::numeric_limits<std::uint64_t>::max());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(SameFrames(sent, *read));
  Reopen();
  read = store_->ReadFrames(key, 100, 199);
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(SameFrames({sent.begin() + 100, sent.begin() + 200}, *read));
}

TEST_F(StoreTest, FramesSinceGivesAllRanksInCommitOrder) {
  const StoredRun run = Adopt("gpt");
  FrameSource source(11, 8);
  std::vector<StepFrame> sent;
  for (std::uint64_t step = 0; step < 300; ++step) {
    for (std::uint32_t rank : {1u, 0u, 2u}) {
      const RankKey key{run.id, rank, rank == 2 ? 1u : 0u};
      sent.push_back(source.Next(key, step));
      Apply(CommitOf(key, {sent.back()}, step));
    }
  }
  for (const std::size_t since : {0u, 1u, 400u, 899u, 900u}) {
    auto read = store_->FramesSince(run.id, since);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(SameFrames({sent.begin() + static_cast<std::ptrdiff_t>(since), sent.end()}, *read)) << since;
  }
}

TEST_F(StoreTest, FullDetailSeriesTellsMissingFromNan) {
  const StoredRun run = Adopt("mlp");
  const RankKey key{run.id, 0, 0};
  std::vector<StepFrame> frames;
  for (std::uint64_t step = 0; step < 4; ++step) {
    StepFrame frame;
    frame.rank = key;
    frame.step = step;
    Sample sample;
    sample.site = 3;
    sample.kind = RecordKind::kTensor;
    if (step != 1) {
      sample.Set(Statistic::kRms, step == 2 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(step));
    }
    sample.Set(Statistic::kNan, static_cast<float>(step));
    frame.samples.push_back(sample);
    frames.push_back(frame);
  }
  Apply(CommitOf(key, frames, 4));
  SeriesQuery query;
  query.run_id = run.id;
  query.statistic = Statistic::kRms;
  auto series = store_->QuerySeries(query);
  ASSERT_TRUE(series.ok());
  ASSERT_EQ(series->size(), 1u);
  const auto& points = series->front().points;
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[0].step, 0u);
  EXPECT_EQ(points[1].step, 2u);
  EXPECT_TRUE(std::isnan(points[1].value));
  EXPECT_EQ(points[2].value, 3.0f);
  query.sites = {4};
  EXPECT_TRUE(store_->QuerySeries(query)->empty());
}

TEST_F(StoreTest, ADisplayNameMeansOneLaunch) {
  EXPECT_EQ(Adopt("gpt", "a").display_name, "gpt");
  EXPECT_EQ(Adopt("gpt", "a").display_name, "gpt");
  EXPECT_EQ(Adopt("gpt", "b").display_name, "gpt#2");
  EXPECT_EQ(Adopt("mlp", "b").display_name, "mlp");
  EXPECT_EQ(Adopt("gpt", "c").display_name, "gpt#3");
  EXPECT_EQ(store_->FindRun("gpt")->launch, "c");
  EXPECT_EQ(store_->FindRun("gpt#2")->launch, "b");
  EXPECT_EQ(store_->FindRun("gpt#1")->launch, "a");
  EXPECT_EQ(store_->FindRun("")->display_name, "gpt#3");
  EXPECT_TRUE(absl::IsNotFound(store_->FindRun("gpt#4").status()));
  EXPECT_TRUE(absl::IsNotFound(store_->FindRun("gpt#0").status()));
  EXPECT_TRUE(absl::IsNotFound(store_->FindRun("other").status()));
  const auto runs = store_->ListRuns();
  ASSERT_EQ(runs->size(), 4u);
  EXPECT_EQ(runs->front().display_name, "gpt#3");
  auto other_user = store_->AdoptRun(1001, "gpt", "a", 1, "");
  EXPECT_EQ(other_user->display_name, "gpt#4") << "two owners never share a display name";
  EXPECT_EQ(other_user->owner_uid, 1001u);
}

TEST_F(StoreTest, ManifestBecomesTheTopologyOnceHoweverOftenItIsDelivered) {
  const StoredRun run = Adopt("gpt");
  const RankKey key{run.id, 0, 0};
  RunEntry entry;
  entry.run_name = "gpt";
  entry.host = "node-1";
  SiteEntry site;
  site.id = 1;
  site.name = "fc:output";
  site.module = "fc";
  site.shape = {4, 8};
  Commit commit = CommitOf(key, {}, 0);
  commit.manifest = {entry, site, EdgeEntry{0, 1}, SinkEntry{1}, MarkEntry{3, "lr drop"}, ReadyEntry{0}};
  Apply(commit);
  SiteEntry changed = site;
  changed.level = ObservationLevel::kTap;
  commit.manifest = {changed};
  Apply(commit);
  Reopen();
  commit.manifest = {entry, site, EdgeEntry{0, 1}, SinkEntry{1}, MarkEntry{3, "lr drop"}, ReadyEntry{0}, changed};
  Apply(commit);
  const auto topology = store_->GetTopology(key);
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->run.host, "node-1");
  ASSERT_EQ(topology->sites.size(), 2u);
  EXPECT_EQ(topology->sites[1].name, "fc:output");
  EXPECT_EQ(topology->sites[1].level, ObservationLevel::kTap);
  EXPECT_EQ(topology->sites[1].shape, site.shape);
  EXPECT_EQ(topology->edges.size(), 1u);
  EXPECT_EQ(topology->sinks, std::vector<std::uint32_t>{1});
  EXPECT_EQ(topology->marks.size(), 1u);
  EXPECT_TRUE(topology->ready);
  EXPECT_TRUE(absl::IsNotFound(store_->GetTopology({run.id, 9, 0}).status()));
}

TEST_F(StoreTest, RanksTotalsAndRunProgressAreKept) {
  const StoredRun run = Adopt("gpt");
  FrameSource source(3, 2);
  for (std::uint32_t rank : {0u, 1u}) {
    const RankKey key{run.id, rank, 0};
    StepFrame frame = source.Next(key, 41);
    frame.complete = true;
    Commit commit = CommitOf(key, {frame}, 5);
    commit.rank.records_dropped = 2;
    commit.rank.last_site = 17;
    commit.site_totals = {{3, 10, 41}, {1, 5, 40}};
    Apply(commit);
    commit.frames.clear();
    commit.site_totals = {{3, 11, 42}};
    commit.rank.state = RankState::kFinished;
    Apply(commit);
  }
  const auto ranks = store_->ListRanks(run.id);
  ASSERT_EQ(ranks->size(), 2u);
  EXPECT_EQ((*ranks)[1].key.rank, 1u);
  EXPECT_EQ((*ranks)[1].state, RankState::kFinished);
  EXPECT_EQ((*ranks)[1].records_dropped, 2u);
  EXPECT_EQ((*ranks)[1].last_site, 17u);
  EXPECT_EQ((*ranks)[1].pid, 4242u);
  const auto totals = store_->SiteTotals({run.id, 1, 0});
  ASSERT_EQ(totals->size(), 2u);
  EXPECT_EQ((*totals)[0].records, 5u);
  EXPECT_EQ((*totals)[1].records, 11u);
  EXPECT_EQ((*totals)[1].last_step, 42u);
  ASSERT_TRUE(store_->SetRunState(run.id, RunState::kDied).ok());
  const auto found = store_->FindRun("gpt");
  EXPECT_EQ(found->state, RunState::kDied);
  EXPECT_EQ(found->steps_seen, 1u);
  EXPECT_EQ(found->world_size, 2u);
}

Diagnosis RichDiagnosis() {
  Diagnosis diagnosis;
  diagnosis.verdict = Verdict::FAULT;
  diagnosis.warm = true;
  diagnosis.steps_seen = 77;
  diagnosis.ranks_seen = {0, 3};
  Hypothesis hypothesis;
  hypothesis.kind = HypothesisKind::VANISHING_GRADIENT;
  hypothesis.module = "blocks.3.fc";
  hypothesis.site = 12;
  hypothesis.rank = -1;
  hypothesis.step = 40;
  hypothesis.phase = Phase::kBackward;
  hypothesis.confidence = 0.875;
  hypothesis.summary = "gradients vanish in blocks.3.fc";
  hypothesis.evidence = {{12, 40, Statistic::kRms, std::numeric_limits<double>::quiet_NaN(), 1e-3, 2e-3, "seen"},
                         {13, 41, Statistic::kNan, std::numeric_limits<double>::infinity(), 0, 0, ""}};
  hypothesis.chain = {{12, 40, Phase::kBackward, 0.9, "cause"}, {5, 41, Phase::kLoss, 0.1, "symptom"}};
  hypothesis.equivalents = {"SATURATED_ACTIVATION blocks.3.act"};
  diagnosis.hypotheses = {hypothesis, Hypothesis{}};
  diagnosis.notices = {{7, 0, HypothesisKind::LOSS_PLATEAU, "", "plateau"}};
  diagnosis.blind_spots = {{9, 1, 3, "silent"}};
  return diagnosis;
}

TEST_F(StoreTest, DiagnosisComesBackWithItsEvidence) {
  const StoredRun run = Adopt("gpt");
  EXPECT_TRUE(absl::IsNotFound(store_->GetDiagnosis(run.id).status()));
  Commit commit = CommitOf({run.id, 0, 0}, {}, 0);
  commit.diagnosis = Diagnosis{};
  Apply(commit);
  EXPECT_EQ(store_->GetDiagnosis(run.id)->verdict, Verdict::INCOMPLETE_DATA);
  commit.diagnosis = RichDiagnosis();
  Apply(commit);
  commit.diagnosis->steps_seen = 78;
  Apply(commit);
  const auto read = store_->GetDiagnosis(run.id);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->verdict, Verdict::FAULT);
  EXPECT_TRUE(read->warm);
  EXPECT_EQ(read->steps_seen, 78u);
  EXPECT_THAT(read->ranks_seen, ::testing::ElementsAre(0u, 3u));
  ASSERT_EQ(read->hypotheses.size(), 2u);
  const Hypothesis& h = read->hypotheses[0];
  EXPECT_EQ(h.kind, HypothesisKind::VANISHING_GRADIENT);
  EXPECT_EQ(h.module, "blocks.3.fc");
  EXPECT_EQ(h.rank, -1);
  EXPECT_EQ(h.phase, Phase::kBackward);
  EXPECT_EQ(h.confidence, 0.875);
  ASSERT_EQ(h.evidence.size(), 2u);
  EXPECT_TRUE(std::isnan(h.evidence[0].observed));
  EXPECT_EQ(h.evidence[1].observed, std::numeric_limits<double>::infinity());
  EXPECT_EQ(h.evidence[0].note, "seen");
  ASSERT_EQ(h.chain.size(), 2u);
  EXPECT_EQ(h.chain[1].phase, Phase::kLoss);
  EXPECT_EQ(h.equivalents, RichDiagnosis().hypotheses[0].equivalents);
  ASSERT_EQ(read->notices.size(), 1u);
  EXPECT_EQ(read->notices[0].text, "plateau");
  ASSERT_EQ(read->blind_spots.size(), 1u);
  EXPECT_EQ(read->blind_spots[0].site, 9u);
}

TEST_F(StoreTest, TransitionsPageByIdAndAreNotStoredTwice) {
  const StoredRun run = Adopt("gpt");
  Commit commit = CommitOf({run.id, 0, 0}, {}, 0);
  for (std::uint64_t id = 1; id <= 5; ++id) {
    Transition transition;
    transition.id = id;
    transition.step = 10 * id;
    transition.site = 4;
    transition.from = "HEALTHY";
    transition.to = "VANISHING";
    transition.value = id == 2 ? std::nan("0x123") : 0.5;
    transition.severity = Severity::kError;
    transition.statistic = Statistic::kRms;
    commit.transitions.push_back(transition);
  }
  Apply(commit);
  Apply(commit);  // a replay that emits them again
  const auto page = store_->ListTransitions(run.id, 1, 3);
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->size(), 3u);
  EXPECT_EQ(page->front().id, 2u);
  const double nan = std::nan("0x123");
  EXPECT_EQ(std::memcmp(&page->front().value, &nan, sizeof(nan)), 0);
  EXPECT_EQ(page->back().step, 40u);
  EXPECT_EQ(page->back().to, "VANISHING");
  EXPECT_EQ(page->back().severity, Severity::kError);
  EXPECT_EQ(store_->ResumeEngine(run.id)->transitions_stored, 5u);
  EXPECT_TRUE(store_->ListTransitions(run.id, std::numeric_limits<std::uint64_t>::max(), 3)->empty());
}

TEST_F(StoreTest, RestartFindsHeadsStateAndSnapshot) {
  const StoredRun run = Adopt("gpt");
  const RankKey key{run.id, 1, 2};
  FrameSource source(5, 3);
  Commit commit = CommitOf(key, {source.Next(key, 0), source.Next(key, 1)}, 99);
  commit.assembler_state = {std::byte{1}, std::byte{2}, std::byte{3}};
  commit.engine_snapshot = {std::byte{9}};
  Apply(commit);
  const StepFrame later = source.Next(key, 2);
  Commit next = CommitOf(key, {later}, 120);
  Apply(next);
  Reopen();
  const auto resume = store_->ResumeSegment(commit.rank.segment_uuid);
  ASSERT_TRUE(resume.ok() && resume->has_value());
  EXPECT_EQ((*resume)->key, key);
  ASSERT_EQ((*resume)->lane_heads.size(), 1u);
  EXPECT_EQ((*resume)->lane_heads[0].head, 120u);
  EXPECT_EQ((*resume)->lane_heads[0].next_attempt, 121u);
  EXPECT_TRUE((*resume)->assembler_state.empty());
  const auto engine = store_->ResumeEngine(run.id);
  EXPECT_EQ(engine->snapshot, commit.engine_snapshot);
  EXPECT_EQ(engine->frame_sequence, 2u);
  EXPECT_TRUE(SameFrames({later}, *store_->FramesSince(run.id, engine->frame_sequence)));
  EXPECT_FALSE(store_->ResumeSegment(SegmentUuid{0xff})->has_value());
  EXPECT_TRUE(store_->ResumeEngine(run.id + 1)->snapshot.empty());
}

TEST_F(StoreTest, ACommitToAnUnknownRunIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(store_->Apply(CommitOf({77, 0, 0}, {}, 0))));
}

TEST_F(StoreTest, ADirectoryHasOneWriter) {
  const auto second = Store::Open(directory_.path());
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), ::testing::HasSubstr("already uses"));
  store_.reset();
  EXPECT_TRUE(Store::Open(directory_.path()).ok());
}

TEST_F(StoreTest, AReaderSeesWhatTheWriterCommits) {
  const StoredRun run = Adopt("gpt");
  const RankKey key{run.id, 0, 0};
  auto reader = Store::OpenReadOnly(directory_.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  FrameSource source(2, 5);
  std::vector<StepFrame> sent;
  for (std::uint64_t step = 0; step < 400; ++step) {
    sent.push_back(source.Next(key, step));
    Apply(CommitOf(key, {sent.back()}, step));
    if (step % 37 == 0) {
      EXPECT_TRUE(SameFrames(sent, *(*reader)->ReadFrames(key, 0, 1000)));
    }
  }
  store_.reset();  // the daemon ends; a reader that comes later finds everything
  auto late = Store::OpenReadOnly(directory_.path());
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_TRUE(SameFrames(sent, *(*late)->ReadFrames(key, 0, 1000)));
  EXPECT_EQ((*late)->FindRun("")->name, "gpt");
}

TEST_F(StoreTest, FilesBelongToTheOwnerAlone) {
  const std::string made = directory_.path() + "/new/data";
  auto opened = Store::Open(made);
  ASSERT_TRUE(opened.ok()) << opened.status();
  struct stat info{};
  ASSERT_EQ(::stat(made.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  for (const char* file : {"/neuraldbg.db", "/neuraldbg.db-wal", "/neuraldbg.lock"}) {
    ASSERT_EQ(::stat((made + file).c_str(), &info), 0) << file;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << file;
  }
}

}  // namespace
}  // namespace neuraldbg
