// After every instruction of a push, a drop, a claim, a hand-over, a manifest entry and a checkpoint, and after every
// system call of a creation: the other side accounts exactly for what a death there leaves. Short work is killed after
// each; of long work each is looked at while it stands (a step costs 25 us in a virtual machine, so that kills after
// each of 5000 instructions would take minutes), and at least a hundred are killed.
//
// Nothing in this binary pushes outside a child, so that the first thread of each child has the serial number 1.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "shared/segment_sweep.h"
#include "shared/writer_registry.h"
#include "tests/shared/checkpoint_consumer.h"
#include "tests/shared/crash_fixture.h"
#include "tests/shared/kill_windows.h"
#include "tests/shared/stepped_process.h"

namespace neuraldbg::testing {
namespace {

namespace fs = std::filesystem;

void GiveLaneBack() { ReleaseLanesOfThread(1); }
void PrepareNothing() {}

class StepKillTest : public CrashTest {
 protected:
  SegmentOptions SmallOptions() const {
    SegmentOptions options = Options();
    options.lanes = 1;
    options.manifest_bytes = kMinManifestBytes;
    return options;
  }
  // The child makes a segment and pushes `before` records; then it does `act`.
  SteppedWork Producer(std::uint64_t before, const std::function<void()>& act) {
    return {[this, before] {
              writer_ = std::move(SegmentWriter::Create(SmallOptions()).value());
              for (step_ = 0; step_ < before; ++step_) writer_->Push(MakeRecord(1, step_));
              next_ = MakeRecord(1, step_);
            },
            act};
  }
  void PushNext() { writer_->Push(next_); }

  // `check` gets the path of what a death after each step leaves: a copy of the segment after every one of them, the
  // segment itself after real kills, all of them where they are few. `restart` precedes each pass.
  void AfterEveryStep(const char* what, const SteppedWork& work, const std::function<void()>& restart,
                      const std::function<void(const std::string& path, int steps)>& check) {
    const std::string copy = directory() + "/copy";
    restart();
    const int total = StandAfterEveryStep(work, StepBy::kInstruction, [&](int steps) {
      fs::copy_file(OnlySegment(), copy, fs::copy_options::overwrite_existing);
      check(copy, steps);
    });
    fs::remove(OnlySegment());
    const int kills = Rounds(100, 500);
    const int stride = total <= 150 ? 1 : std::max(1, total / kills);
    restart();
    KillAfterSteps(work, StepBy::kInstruction, total, stride, [&](int steps) {
      const std::string path = OnlySegment();
      check(path, steps);
      fs::remove(path);
    });
    EXPECT_GT(total, 20);
    std::printf("%s: accounted for after each of %d instructions, killed after every %dth\n", what, total, stride);
  }

  // Accounts for the dead child's segment: all of `before`, and at most the one push that was stepped. Once that push
  // is accounted for it stays so.
  void ExpectAccounted(const std::string& path, std::uint64_t before, int steps) {
    const auto reader = AttachOrFail(path);
    ASSERT_NE(reader, nullptr);
    ASSERT_EQ(reader->owner_state(), OwnerState::kDead);
    const std::vector<Record> received = DrainAll(*reader);
    for (std::size_t i = 0; i < received.size(); ++i) {
      ASSERT_EQ(received[i].step, i);
      ASSERT_TRUE(IsIntact(received[i])) << "after " << steps << " steps";
    }
    const LaneCounters lane = reader->counters()[0];
    ASSERT_EQ(lane.invalid + lane.resyncs, 0u) << "after " << steps << " steps";
    const std::uint64_t accounted = received.size() + reader->dropped_total();
    ASSERT_GE(accounted, before) << "after " << steps << " steps";
    ASSERT_LE(accounted, before + 1) << "after " << steps << " steps";
    ASSERT_GE(reader->SiteDropped(1), reader->dropped_total());
    ASSERT_LE(received.size() + reader->SiteDropped(1), before + 1);
    const std::vector<Record> last = reader->ReadBlackBox();
    for (const Record& record : last) ASSERT_TRUE(IsIntact(record));
    ASSERT_GE(last.size(), std::min<std::uint64_t>(reader->dropped_total(), kBlackBoxRecords - 1))
        << "what is counted as dropped is in the black box";
    const std::vector<LaneEnd> ends = reader->LaneEnds();
    ASSERT_EQ(ends.size(), before > 0 || accounted > 0 ? 1u : 0u) << "after " << steps << " steps";
    for (const LaneEnd& end : ends) ASSERT_TRUE(IsIntact(end.last) && end.last.step + 1 >= before);
    const bool now = accounted == before + 1;
    ASSERT_TRUE(now || !accounted_) << "a push is undone after " << steps << " steps";
    accounted_ = now;
  }
  void StepThroughPush(const char* what, std::uint64_t before) {
    AfterEveryStep(
        what, Producer(before, [this] { PushNext(); }), [this] { accounted_ = false; },
        [&](const std::string& path, int steps) { ExpectAccounted(path, before, steps); });
    EXPECT_TRUE(accounted_) << "the whole push was stepped through";
  }

  std::unique_ptr<SegmentWriter> writer_;  // of the child
  std::uint64_t step_ = 0;
  Record next_{};
  bool accounted_ = false;
};

TEST_F(StepKillTest, EveryInstructionOfAPush) { StepThroughPush("push", 3); }

TEST_F(StepKillTest, EveryInstructionOfADrop) { StepThroughPush("drop", 64 + 3); }

TEST_F(StepKillTest, EveryInstructionOfADropThatWrapsTheBlackBox) {
  StepThroughPush("drop over the oldest", 64 + kBlackBoxRecords + 3);
}

// From the first push of a lane over the last free slot into the black box and around it.
TEST_F(StepKillTest, NoSystemCallInAThousandPushes) {
  SteppedWork work = Producer(1, [this] {
    for (; step_ < 1000; ++step_) writer_->Push(MakeRecord(1, step_));
  });
  EXPECT_EQ(StandAfterEveryStep(work, StepBy::kSystemCall, [](int) {}), 1) << "the stop behind the work is the first";
  const auto reader = AttachOrFail(OnlySegment());
  EXPECT_EQ(DrainAll(*reader).size() + reader->dropped_total(), 1000u);
}

TEST_F(StepKillTest, EveryInstructionOfALaneClaim) { StepThroughPush("first push with claim", 0); }

TEST_F(StepKillTest, EveryInstructionOfGivingALaneBack) {
  bool free = false;
  AfterEveryStep(
      "giving a lane back", Producer(3, &GiveLaneBack), [&] { free = false; },
      [&](const std::string& path, int steps) {
        const auto reader = AttachOrFail(path);
        const bool now_free = reader->counters()[0].owner_tid == 0;
        EXPECT_TRUE(now_free || !free);
        free = now_free;
        ExpectAccounted(path, 3, steps);
      });
  EXPECT_TRUE(free) << "the lane was given back in the end";
  EXPECT_FALSE(accounted_);
}

TEST_F(StepKillTest, EveryInstructionOfAManifestEntry) {
  SteppedWork work = Producer(0, [this] { writer_->manifest().Append(MarkEntry{2, "second"}); });
  const auto prepare = work.prepare;
  work.prepare = [this, prepare] {
    prepare();
    writer_->manifest().Append(MarkEntry{1, "first"});
  };
  std::size_t known = 1;
  AfterEveryStep(
      "manifest entry", work, [&] { known = 1; },
      [&](const std::string& path, int steps) {
        const auto reader = AttachOrFail(path);
        std::vector<std::string> texts;
        const auto take = [&](const ManifestEntry& entry) { texts.push_back(std::get<MarkEntry>(entry).text); };
        ASSERT_EQ(reader->manifest().Poll(take).code, Errc::kOk);
        ASSERT_GE(texts.size(), known) << "after " << steps << " steps";
        ASSERT_EQ(texts[0], "first");
        ASSERT_TRUE(texts.size() == 1 || texts[1] == "second");
        known = texts.size();
      });
  EXPECT_EQ(known, 2u);
}

// The consumer this time: one round of drain, checkpoint and release. Whoever comes after delivers the rest.
TEST_F(StepKillTest, EveryInstructionOfACheckpoint) {
  constexpr std::uint64_t kRecords = 3;
  SharedObject<ConsumerMemory> memory;
  std::unique_ptr<SegmentReader> reader;  // of the child
  Checkpoint now;
  std::uint64_t hash = 0;
  for (std::uint64_t step = 0; step < kRecords; ++step) hash = Mix(hash, step);
  const SteppedWork work{[&] {
                           ChildProcess producer([this] {
                             const auto writer = SegmentWriter::Create(SmallOptions());
                             for (std::uint64_t step = 0; step < kRecords; ++step)
                               writer.value()->Push(MakeRecord(0, step));
                             return 0;
                           });
                           producer.Wait();
                           memory->valid.store(0);
                           memory->copies[0] = Checkpoint{};
                           reader = AttachOrFail(OnlySegment());
                         },
                         [&] { ConsumeOnce(*reader, *memory, now); }};
  bool was_durable = false;
  AfterEveryStep(
      "checkpoint", work, [&] { was_durable = false; },
      [&](const std::string& path, int steps) {
        ConsumerMemory left;
        left.valid.store(memory->valid.load());
        std::copy(std::begin(memory->copies), std::end(memory->copies), left.copies);
        const bool durable = left.copies[left.valid.load()].delivered[0] == kRecords;
        ASSERT_TRUE(durable || !was_durable) << "after " << steps << " steps";
        was_durable = durable;
        ASSERT_EQ(Consume(path, left, UntilEmpty::kYes), 0);
        const Checkpoint& result = left.copies[left.valid.load()];
        ASSERT_EQ(result.delivered[0], kRecords) << "after " << steps << " steps";
        ASSERT_EQ(result.hash[0], hash);
      });
  EXPECT_TRUE(was_durable);
}

TEST_F(StepKillTest, EverySystemCallOfACreation) {
  const SteppedWork work{&PrepareNothing, [this] { writer_ = std::move(SegmentWriter::Create(Options()).value()); }};
  SweepOptions sweep;
  sweep.directory = directory();
  sweep.uid = ::geteuid();
  sweep.temporary_ttl = std::chrono::seconds(-1);
  const int total = StandAfterEveryStep(work, StepBy::kSystemCall, [](int) {});
  fs::remove(OnlySegment());
  bool visible = false;
  int half_made = 0;
  KillAfterSteps(work, StepBy::kSystemCall, total, 1, [&](int steps) {
    const std::string path = OnlySegment();
    ASSERT_TRUE(!path.empty() || !visible) << "after " << steps << " steps";
    visible = !path.empty();
    if (visible) {
      const auto reader = AttachOrFail(path);
      ASSERT_NE(reader, nullptr);
      EXPECT_EQ(reader->owner_state(), OwnerState::kDead);
      EXPECT_FALSE(reader->Pending());
      reader->Unlink();
    } else if (!fs::is_empty(directory())) {
      ++half_made;
    }
    SweepSegments(sweep);
    ASSERT_TRUE(fs::is_empty(directory()));
  });
  EXPECT_TRUE(visible);
  EXPECT_GT(half_made, 5);
  std::printf("creation: killed before and after each of %d system calls\n", total / 2);
}

}  // namespace
}  // namespace neuraldbg::testing
