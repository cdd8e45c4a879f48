// The checkpoint with the real store, killed after every system call: drain, one transaction with frames, lane heads
// and the assembler's state, release. Whoever comes after stores what an undisturbed daemon would have stored, once.
#include <gtest/gtest.h>

#include <filesystem>

#include "daemon/ingest/rank_reader.h"
#include "shared/ring_writer.h"
#include "tests/daemon/ingest/record_builder.h"
#include "tests/daemon/store/store_fixture.h"
#include "tests/shared/stepped_process.h"

namespace neuraldbg {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSteps = 6;
constexpr std::uint64_t kAll = UINT64_MAX;

// A daemon's life with one segment, from opening the store to the release.
class Consumer {
 public:
  Consumer(const std::string& data, const std::string& segment) {
    store_ = std::move(Store::Open(data)).value();
    run_ = store_->AdoptRun(::getuid(), "stepped", "launch", 1, "").value();
    const HistoryLookup history = [this](const SegmentUuid& uuid) -> std::optional<SegmentHistory> {
      auto resume = store_->ResumeSegment(uuid).value();
      if (!resume) return std::nullopt;
      return SegmentHistory{resume->key, std::move(resume->lane_heads), std::move(resume->assembler_state)};
    };
    auto opened = RankReader::Open(segment, {.uid = ::getuid(), .gid = {}}, history);
    if (!opened.ok()) std::abort();
    reader_ = std::move(opened).value();
    reader_->PollManifest();
  }
  void Checkpoint() {
    reader_->Drain();
    Commit commit = CommitOf(key(), reader_->TakeFrames(), 0);
    commit.rank.segment_uuid = reader_->identity().uuid;
    commit.lane_heads = reader_->heads();
    commit.manifest = reader_->TakeManifest();
    commit.assembler_state = reader_->State();
    if (!store_->Apply(commit).ok()) std::abort();
    reader_->Committed();
  }
  std::vector<StepFrame> Stored() {
    auto frames = store_->ReadFrames(key(), 0, kAll);
    return frames.ok() ? *std::move(frames) : std::vector<StepFrame>{};  // a rank is known from its first commit on
  }

 private:
  RankKey key() const { return {run_.id, 0, 0}; }
  std::unique_ptr<Store> store_;
  StoredRun run_;
  std::unique_ptr<RankReader> reader_;
};

// A segment whose owner is dead: whole steps and the beginning of one more.
std::string MakeSegment(const std::string& directory) {
  testing::ChildProcess producer([&directory] {
    SegmentOptions options;
    options.directory = directory;
    options.run_name = "stepped";
    options.lanes = 1;
    options.lane_capacity = 64;
    options.sites = 16;
    options.manifest_bytes = 8192;
    auto writer = SegmentWriter::Create(options);
    RunEntry run;
    run.run_name = "stepped";
    run.launch = "launch";
    SegmentWriter& segment = *writer.value();
    segment.manifest().Append(run);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      segment.Push(TensorRecord(step, 0, static_cast<double>(step)));
      segment.Push(StepRecord(step, 15, segment.attempts() + 1, segment.dropped()));
    }
    segment.Push(TensorRecord(kSteps, 0, 1.0));
    ::_exit(0);
    return 0;
  });
  if (producer.Wait() != 0) return {};
  return fs::directory_iterator(directory)->path().string();
}

TEST(CheckpointKillTest, EverySystemCallOfACommit) {
  std::unique_ptr<TemporaryDirectory> data, shared_memory;
  std::string segment;
  const auto start_anew = [&] {
    data = std::make_unique<TemporaryDirectory>();
    shared_memory = std::make_unique<TemporaryDirectory>();
    segment = MakeSegment(shared_memory->path());
    ASSERT_FALSE(segment.empty());
  };
  start_anew();
  std::unique_ptr<Consumer> consumer;  // of the child
  const testing::SteppedWork work{[&] { consumer = std::make_unique<Consumer>(data->path(), segment); },
                                  [&] { consumer->Checkpoint(); }};
  const int total = testing::StandAfterEveryStep(work, testing::StepBy::kSystemCall, [](int) {});
  std::vector<StepFrame> undisturbed;
  {
    Consumer later(data->path(), segment);
    later.Checkpoint();
    undisturbed = later.Stored();
  }
  ASSERT_EQ(undisturbed.size(), kSteps);
  for (const StepFrame& frame : undisturbed) EXPECT_TRUE(frame.complete) << frame.step;
  start_anew();
  int stored_before_death = 0;
  testing::KillAfterSteps(work, testing::StepBy::kSystemCall, total, 1, [&](int steps) {
    Consumer later(data->path(), segment);
    stored_before_death += later.Stored().empty() ? 0 : 1;
    later.Checkpoint();
    ASSERT_TRUE(SameFrames(later.Stored(), undisturbed)) << "killed after " << steps << " stops";
    later.Checkpoint();
    ASSERT_EQ(later.Stored().size(), kSteps) << "nothing is left to be delivered";
    start_anew();
  });
  EXPECT_GT(stored_before_death, 0);
  EXPECT_LT(stored_before_death, total);
  std::printf("commit: killed before and after each of %d system calls, %d of %d after it was durable\n", total / 2,
              stored_before_death, total + 1);
}

}  // namespace
}  // namespace neuraldbg
