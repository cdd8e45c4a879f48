// Processes that die, fork or stop. Kills at random instants: producer_kill_test.cc and its neighbours; after every
// instruction: step_kill_test.cc.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tests/shared/checkpoint_consumer.h"
#include "tests/shared/crash_fixture.h"

namespace neuraldbg::testing {
namespace {

TEST_F(CrashTest, DeathOfTheOwnerIsSeenAndItsRecordsSurvive) {
  ChildProcess child([this] {
    const auto writer = SegmentWriter::Create(Options());
    for (std::uint64_t step = 0; step < 30; ++step) writer.value()->Push(MakeRecord(1, step));
    for (;;) ::pause();
    return 0;
  });
  ASSERT_TRUE(WaitFor([this] { return !OnlySegment().empty(); }));
  const auto reader = AttachOrFail(OnlySegment());
  ASSERT_TRUE(WaitFor([&reader] { return reader->Pending(); }));
  EXPECT_EQ(reader->owner_state(), OwnerState::kAlive);
  child.Kill();
  EXPECT_EQ(reader->owner_state(), OwnerState::kDead);
  const std::vector<Record> received = DrainAll(*reader);
  // The kill may have come before the last pushes; what was published is complete and in order.
  ASSERT_FALSE(received.empty());
  for (std::size_t i = 0; i < received.size(); ++i) {
    EXPECT_EQ(received[i].step, i);
    EXPECT_TRUE(IsIntact(received[i]));
  }
}

TEST_F(CrashTest, AForkedChildIsRefusedAndTheParentsDeathIsStillSeen) {
  SharedObject<std::atomic<int>> grandchild;
  ChildProcess owner([&] {
    const auto writer = SegmentWriter::Create(Options());
    writer.value()->Push(MakeRecord(0, 0));
    const pid_t pid = ::fork();
    if (pid == 0) {
      // As a data loader's worker: it inherits everything and outlives the trainer.
      const bool refused = writer.value()->Push(MakeRecord(0, 1)) == PushOutcome::kDisabled &&
                           !writer.value()->enabled() &&
                           writer.value()->manifest().Append(ReadyEntry{1}).code == Errc::kDisabled;
      writer.value()->Close();
      writer.value()->Heartbeat();
      grandchild->store(refused ? 1 : 2);
      while (grandchild->load() != 3) ::usleep(1000);
      return 0;
    }
    while (grandchild->load() == 0) ::usleep(1000);
    writer.value()->Push(MakeRecord(0, 2));
    for (;;) ::pause();
    return 0;
  });
  ASSERT_TRUE(WaitFor([&] { return grandchild->load() != 0; }));
  EXPECT_EQ(grandchild->load(), 1);
  const auto reader = AttachOrFail(OnlySegment());
  EXPECT_EQ(reader->owner_state(), OwnerState::kAlive) << "the child's Close is not the owner's";
  std::vector<std::uint64_t> steps;
  ASSERT_TRUE(WaitFor([&] {
    for (const Record& record : DrainAll(*reader)) steps.push_back(record.step);
    return steps.size() >= 2;
  }));
  owner.Kill();
  EXPECT_EQ(reader->owner_state(), OwnerState::kDead) << "though the grandchild still maps the segment";
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{0, 2}));
  grandchild->store(3);
}

TEST_F(CrashTest, AForkedChildMayDestroyItsCopyAndMakeItsOwnSegment) {
  auto writer = CreateOrFail(Options());
  writer->Push(MakeRecord(0, 0));
  ChildProcess child([&] {
    writer.reset();
    const auto own = SegmentWriter::Create(Options());
    return own.ok() && own.value()->Push(MakeRecord(3, 1)) == PushOutcome::kPushed ? 0 : 1;
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(writer->Push(MakeRecord(0, 1)), PushOutcome::kPushed);
  const auto reader = AttachOrFail(writer->path());
  EXPECT_EQ(reader->owner_state(), OwnerState::kAlive);
  EXPECT_EQ(DrainAll(*reader).size(), 2u);
}

TEST_F(CrashTest, TheBlackBoxKeepsTheLastRecordsBeforeACrash) {
  constexpr std::uint64_t kPushes = 5000;
  SharedObject<std::atomic<bool>> done;
  ChildProcess child([&] {
    const auto writer = SegmentWriter::Create(Options());
    for (std::uint64_t step = 0; step < kPushes; ++step) writer.value()->Push(MakeRecord(1, step));
    done->store(true);
    for (;;) ::pause();
    return 0;
  });
  ASSERT_TRUE(WaitFor([&] { return done->load(); }));
  const auto reader = AttachOrFail(OnlySegment());
  EXPECT_TRUE(reader->ReadBlackBox().empty()) << "not while the owner may write it";
  child.Kill();
  EXPECT_EQ(DrainAll(*reader).size(), 64u);
  EXPECT_EQ(reader->dropped_total(), kPushes - 64);
  const std::vector<Record> last = reader->ReadBlackBox();
  ASSERT_EQ(last.size(), 511u);
  for (std::size_t i = 0; i < last.size(); ++i) {
    EXPECT_EQ(last[i].step, kPushes - 511 + i);
    EXPECT_TRUE(IsIntact(last[i]));
  }
}

TEST_F(CrashTest, AStoppedConsumerDoesNotStopTheProducer) {
  const auto writer = CreateOrFail(Options());
  SharedObject<ConsumerMemory> memory;
  ChildProcess consumer([&] { return Consume(writer->path(), *memory, UntilEmpty::kNo); });
  ASSERT_TRUE(WaitFor([&] { return memory->stage.load() != ConsumerStage::kAttaching; }));
  ASSERT_EQ(::kill(consumer.pid(), SIGSTOP), 0);
  for (std::uint64_t step = 0; step < 200'000; ++step) writer->Push(MakeRecord(0, step));
  EXPECT_EQ(writer->attempts(), 200'000u);
  EXPECT_GT(writer->dropped(), 0u);
}

}  // namespace
}  // namespace neuraldbg::testing
