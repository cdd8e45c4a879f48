// RankReader on a real segment: identity from the manifest, frames from the ring, and a restart in between that neither
// loses nor repeats.
#include "daemon/ingest/rank_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "shared/ring_writer.h"
#include "tests/daemon/ingest/record_builder.h"

namespace neuraldbg {
namespace {

class RankReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "reader.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    SegmentOptions options;
    options.directory = directory_;
    options.run_name = "read";
    options.lanes = 2;
    options.lane_capacity = 64;
    options.lane_capacity_min = 64;
    options.sites = 16;
    options.manifest_bytes = 8192;
    auto writer = SegmentWriter::Create(options);
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    writer_ = std::move(writer).value();
    RunEntry run;
    run.run_name = "read";
    run.launch = "launch";
    ASSERT_EQ(writer_->manifest().Append(run).code, Errc::kOk);
    SiteEntry site;
    site.name = "fc:output";
    ASSERT_EQ(writer_->manifest().Append(site).code, Errc::kOk);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void PushStep(std::uint64_t step) {
    writer_->Push(TensorRecord(step, 0, static_cast<double>(step)));
    writer_->Push(StepRecord(step, 15, writer_->attempts() + 1, writer_->dropped()));
  }
  std::unique_ptr<RankReader> Open(const HistoryLookup& history = {}) {
    auto reader = RankReader::Open(writer_->path(), {.uid = ::getuid(), .gid = {}}, history);
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    return std::move(reader).value();
  }

  std::string directory_;
  std::unique_ptr<SegmentWriter> writer_;
};

TEST_F(RankReaderTest, Manifest_GivesIdentityAndTopology) {
  const auto reader = Open();
  EXPECT_FALSE(reader->identified());
  EXPECT_TRUE(reader->PollManifest());
  EXPECT_TRUE(reader->identified());
  EXPECT_EQ(reader->topology().sites.at(0).name, "fc:output");
  EXPECT_EQ(reader->TakeManifest().size(), 2u);
  EXPECT_FALSE(reader->PollManifest());
  EXPECT_TRUE(reader->TakeManifest().empty());
}

TEST_F(RankReaderTest, Drain_GivesFramesAndFreesTheRing) {
  const auto reader = Open();
  for (std::uint64_t step = 0; step < 200; ++step) {
    PushStep(step);
    if (step % 20 != 19) continue;
    EXPECT_EQ(reader->Drain(), 40u);
    const auto frames = reader->TakeFrames();
    ASSERT_EQ(frames.size(), 20u);
    EXPECT_EQ(frames.back().step, step);
    reader->Committed();
  }
  EXPECT_EQ(reader->dropped(), 0u);
}

TEST_F(RankReaderTest, FullRing_LosesCountedRecordsOnly) {
  const auto reader = Open();
  for (std::uint64_t step = 0; step < 50; ++step) PushStep(step);  // 100 records into 64 slots
  reader->Drain();
  auto frames = reader->TakeFrames();
  ASSERT_EQ(frames.size(), 32u);
  for (const StepFrame& frame : frames) EXPECT_EQ(frame.records_missing, 0u);
  reader->Committed();
  PushStep(50);
  reader->Drain();
  frames = reader->TakeFrames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].step, 50u);
  EXPECT_EQ(frames[0].records_missing, 36u);
  EXPECT_TRUE(frames[0].complete);
}

// The daemon dies at every possible point of its cycle: after Drain without commit (records come again), or after the
// commit but before the release.
TEST_F(RankReaderTest, Restart_NeitherLosesNorRepeats) {
  std::optional<SegmentHistory> durable;
  std::vector<std::uint64_t> steps;
  std::size_t manifest_entries = 0;
  const HistoryLookup history = [&](const SegmentUuid&) { return durable; };
  std::uint64_t pushed = 0;
  for (int life = 0; life < 12; ++life) {
    const auto reader = Open(history);
    reader->PollManifest();
    for (int pass = 0; pass < 3; ++pass) {
      for (int i = 0; i < 5; ++i) PushStep(pushed++);
      writer_->Push(TensorRecord(pushed, 0, 1.0));  // and a step that stays open
      reader->Drain();
      const bool dies_before_commit = life % 3 == 1 && pass == 2;
      if (dies_before_commit) break;
      for (const StepFrame& frame : reader->TakeFrames()) steps.push_back(frame.step);
      manifest_entries += reader->TakeManifest().size();
      durable = SegmentHistory{.key = {.run_id = 1}, .lane_heads = reader->heads(), .state = reader->State()};
      const bool dies_before_release = life % 3 == 2 && pass == 2;
      if (!dies_before_release) reader->Committed();
    }
  }
  const auto reader = Open(history);
  EXPECT_EQ(reader->resumed_key(), (RankKey{.run_id = 1}));
  reader->Drain();
  for (const StepFrame& frame : reader->TakeFrames()) steps.push_back(frame.step);
  std::vector<std::uint64_t> expected(pushed);
  for (std::uint64_t step = 0; step < pushed; ++step) expected[step] = step;
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(manifest_entries, 2u);
  EXPECT_EQ(reader->dropped(), 0u);
  EXPECT_EQ(reader->assembler().received(), writer_->attempts());
}

TEST_F(RankReaderTest, OwnersEnd_IsSeen) {
  const auto reader = Open();
  EXPECT_EQ(reader->owner_state(), OwnerState::kAlive);
  writer_->Push(TensorRecord(0, 0, 1.0));
  writer_->Close();
  EXPECT_EQ(reader->owner_state(), OwnerState::kClosed);
  reader->Drain();
  reader->FinishSteps();
  const auto frames = reader->TakeFrames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_FALSE(frames[0].complete);
}

}  // namespace
}  // namespace neuraldbg
