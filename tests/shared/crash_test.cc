// Processes that die, fork or stop. Kills at random instants: producer_kill_test.cc and its neighbours; after every
// instruction: step_kill_test.cc.
#include <gtest/gtest.h>
#include <sched.h>

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

TEST_F(CrashTest, WhereEveryThreadWasIsSeenAfterTheDeath) {
  SharedObject<std::atomic<bool>> pushed, drained, done;
  ChildProcess child([&] {
    const auto writer = SegmentWriter::Create(Options());
    std::thread ended([&] { writer.value()->Push(MakeRecord(3, 7)); });
    ended.join();  // before another thread claims a lane: that one takes this lane over
    std::thread full([&] {
      for (std::uint64_t step = 0; step < 200; ++step) writer.value()->Push(MakeRecord(2, step));
      pushed->store(true);
      for (;;) ::pause();
    });
    while (!pushed->load()) std::this_thread::yield();
    std::thread([&] { writer.value()->Push(MakeRecord(4, 9)); }).join();
    for (std::uint64_t step = 0; step < 5; ++step) writer.value()->Push(MakeRecord(1, step));
    done->store(true);
    for (;;) ::pause();
    return 0;
  });
  ASSERT_TRUE(WaitFor([&] { return done->load(); }));
  const auto reader = AttachOrFail(OnlySegment());
  EXPECT_TRUE(reader->LaneEnds().empty()) << "not while the owner may write";
  const pid_t pid = child.pid();
  child.Kill();
  for (const char* when : {"before anything was drained", "after all was"}) {
    const std::vector<LaneEnd> ends = reader->LaneEnds();
    ASSERT_EQ(ends.size(), 2u) << when;
    EXPECT_EQ(ends[0].last.site, 2u) << when;
    EXPECT_EQ(ends[0].last.step, 199u) << "dropped, and newer than what the lane holds; " << when;
    EXPECT_EQ(ends[1].last.site, 1u) << when;
    EXPECT_EQ(ends[1].last.step, 4u) << when;
    EXPECT_EQ(ends[1].owner_tid, static_cast<std::uint32_t>(pid)) << "the main thread's id is the process's";
    EXPECT_TRUE(IsIntact(ends[0].last) && IsIntact(ends[1].last));
    DrainAll(*reader);
    reader->Release();
  }
}

TEST_F(CrashTest, ARunThatIsOverBeforeAnyReaderCameIsReadable) {
  ChildProcess child([this]() -> int {
    const auto writer = SegmentWriter::Create(Options());
    writer.value()->manifest().Append(ReadyEntry{0});
    for (std::uint64_t step = 0; step < 1000; ++step) writer.value()->Push(MakeRecord(1, step));
    ::_exit(0);  // no destructor closes the segment
  });
  EXPECT_EQ(child.Wait(), 0);
  const auto reader = AttachOrFail(OnlySegment());
  EXPECT_EQ(reader->owner_state(), OwnerState::kDead);
  std::size_t entries = 0;
  EXPECT_EQ(reader->manifest().Poll([&entries](const ManifestEntry&) { ++entries; }).code, Errc::kOk);
  EXPECT_EQ(entries, 1u);
  const std::vector<Record> first = DrainAll(*reader);
  ASSERT_EQ(first.size(), 64u) << "the oldest, as many as the lane holds";
  EXPECT_EQ(first.back().step, 63u);
  EXPECT_EQ(reader->SiteDropped(1), 1000u - 64u) << "and the rest is counted";
  const std::vector<Record> last = reader->ReadBlackBox();
  ASSERT_EQ(last.size(), 511u);
  EXPECT_EQ(last.back().step, 999u) << "and the newest are in the black box";
}

TEST_F(CrashTest, AProcessThatBecomesAnotherProgramIsNoOwnerAnyMore) {
  ChildProcess child([this] {
    const auto writer = SegmentWriter::Create(Options());
    writer.value()->Push(MakeRecord(1, 0));
    ::execl("/bin/sleep", "sleep", "600", nullptr);
    return 1;
  });
  ASSERT_TRUE(WaitFor([this] { return !OnlySegment().empty(); }));
  const auto reader = AttachOrFail(OnlySegment());
  EXPECT_TRUE(WaitFor([&reader] { return reader->owner_state() == OwnerState::kDead; }));
  EXPECT_EQ(::kill(child.pid(), 0), 0) << "the process itself lives";
  EXPECT_EQ(DrainAll(*reader).size(), 1u);
}

// As a container has one: process ids say nothing to a reader outside.
TEST_F(CrashTest, LifeAndDeathAreSeenAcrossPidNamespaces) {
  SharedObject<std::atomic<int>> made;
  ChildProcess outer([&] {
    if (::unshare(CLONE_NEWPID) != 0) return made->store(-1), 0;
    const pid_t owner = ::fork();
    if (owner == 0) {
      const auto writer = SegmentWriter::Create(Options());
      writer.value()->Push(MakeRecord(0, 0));
      made->store(::getpid());
      for (;;) ::pause();
    }
    while (made->load() < 2) ::usleep(1000);
    ::kill(owner, SIGKILL);
    ::waitpid(owner, nullptr, 0);
    made->store(3);
    for (;;) ::pause();
    return 0;
  });
  ASSERT_TRUE(WaitFor([&] { return made->load() != 0; }));
  if (made->load() < 0) GTEST_SKIP() << "a PID namespace is not permitted here";
  EXPECT_EQ(made->load(), 1) << "the owner is the first process of its namespace";
  const auto reader = AttachOrFail(OnlySegment());
  EXPECT_EQ(reader->identity().pid, 1u) << "which names another process here, alive for ever";
  EXPECT_EQ(reader->owner_state(), OwnerState::kAlive);
  made->store(2);
  ASSERT_TRUE(WaitFor([&] { return made->load() == 3; }));
  EXPECT_EQ(reader->owner_state(), OwnerState::kDead);
  EXPECT_EQ(DrainAll(*reader).size(), 1u);
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
