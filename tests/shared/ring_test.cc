// Writer and reader of a segment in one process: what goes in comes out, and what does not fit is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "tests/shared/segment_fixture.h"

namespace neuraldbg::testing {
namespace {

using RingTest = SegmentTest;

TEST_F(RingTest, DeliversWhatWasPushedInProgramOrder) {
  const auto writer = CreateOrFail(Options());
  ASSERT_NE(writer, nullptr);
  for (std::uint64_t step = 0; step < 10; ++step) {
    ASSERT_EQ(writer->Push(MakeRecord(static_cast<std::uint32_t>(step), step)), PushOutcome::kPushed);
  }
  const auto reader = AttachOrFail(writer->path());
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->Pending());
  const std::vector<Record> received = DrainAll(*reader);
  ASSERT_EQ(received.size(), 10u);
  for (std::uint64_t step = 0; step < 10; ++step) {
    EXPECT_EQ(received[step].step, step);
    EXPECT_EQ(received[step].attempt, step);
    EXPECT_TRUE(IsIntact(received[step]));
  }
  EXPECT_FALSE(reader->Pending());
  EXPECT_EQ(writer->attempts(), 10u);
  EXPECT_EQ(writer->dropped(), 0u);
  EXPECT_EQ(reader->owner_state(), OwnerState::kAlive);
}

TEST_F(RingTest, LosesNothingOverManyLapsWhenTheReaderKeepsUp) {
  const auto writer = CreateOrFail(Options());
  const auto reader = AttachOrFail(writer->path());
  std::uint64_t next = 0;
  for (std::uint64_t burst = 0; burst < 200; ++burst) {
    for (std::uint64_t i = 0; i < burst % 65; ++i) {
      ASSERT_EQ(writer->Push(MakeRecord(0, next + i)), PushOutcome::kPushed);
    }
    for (const Record& record : DrainAll(*reader)) {
      ASSERT_EQ(record.step, next++);
      ASSERT_TRUE(IsIntact(record));
    }
  }
  EXPECT_EQ(next, writer->attempts());
  EXPECT_EQ(reader->counters()[0].invalid, 0u);
}

TEST_F(RingTest, DrainTakesAtMostTheLimitPerLane) {
  const auto writer = CreateOrFail(Options());
  const auto reader = AttachOrFail(writer->path());
  for (std::uint64_t step = 0; step < 50; ++step) writer->Push(MakeRecord(0, step));
  const auto ignore = [](std::uint32_t, std::span<const Record>) {};
  EXPECT_EQ(reader->Drain(ignore, 20), 20u);
  EXPECT_EQ(reader->Drain(ignore, 20), 20u);
  EXPECT_EQ(reader->Drain(ignore, 20), 10u);
}

TEST_F(RingTest, FullLaneDropsTheNewestAndCountsPerLaneAndSite) {
  const auto writer = CreateOrFail(Options());
  const auto reader = AttachOrFail(writer->path());
  for (std::uint64_t step = 0; step < 64; ++step) {
    ASSERT_EQ(writer->Push(MakeRecord(3, step)), PushOutcome::kPushed);
  }
  for (std::uint64_t step = 64; step < 74; ++step) {
    ASSERT_EQ(writer->Push(MakeRecord(step % 2 == 0 ? 5 : 6, step)), PushOutcome::kDropped);
  }
  EXPECT_EQ(writer->attempts(), 74u);
  EXPECT_EQ(writer->dropped(), 10u);
  EXPECT_EQ(reader->dropped_total(), 10u);
  EXPECT_EQ(reader->SiteDropped(3), 0u);
  EXPECT_EQ(reader->SiteDropped(5), 5u);
  EXPECT_EQ(reader->SiteDropped(6), 5u);
  EXPECT_EQ(reader->counters()[0].dropped, 10u);
  EXPECT_EQ(DrainAll(*reader).size(), 64u);
  // The gap in the attempt numbers is the second, independent count of the loss.
  ASSERT_EQ(writer->Push(MakeRecord(3, 74)), PushOutcome::kPushed);
  const std::vector<Record> after = DrainAll(*reader);
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after[0].attempt, 74u);
}

TEST_F(RingTest, SlotsAreReusedOnlyAfterRelease) {
  const auto writer = CreateOrFail(Options());
  const auto reader = AttachOrFail(writer->path());
  for (std::uint64_t step = 0; step < 64; ++step) writer->Push(MakeRecord(0, step));
  reader->Drain([](std::uint32_t, std::span<const Record>) {});
  EXPECT_EQ(writer->Push(MakeRecord(0, 64)), PushOutcome::kDropped);
  reader->Release();
  EXPECT_EQ(writer->Push(MakeRecord(0, 65)), PushOutcome::kPushed);
}

TEST_F(RingTest, SitesBeyondTheTableAreDroppedAndCountedTogether) {
  const auto writer = CreateOrFail(Options());
  const auto reader = AttachOrFail(writer->path());
  EXPECT_EQ(writer->Push(MakeRecord(15, 0)), PushOutcome::kPushed);
  EXPECT_EQ(writer->Push(MakeRecord(16, 0)), PushOutcome::kDropped);
  EXPECT_EQ(writer->Push(MakeRecord(kNoSite, 0)), PushOutcome::kDropped);
  EXPECT_EQ(reader->SiteDropped(16), 2u);
  EXPECT_EQ(reader->SiteDropped(15), 0u);
  EXPECT_EQ(writer->attempts(), 3u);
  EXPECT_EQ(DrainAll(*reader).size(), 1u);
}

// Also the subject of the thread sanitizer build: the reader uses the writer's mapping, so both ends are paired.
TEST_F(RingTest, ThreadsPushIntoLanesOfTheirOwnWhileTheReaderDrains) {
  constexpr std::uint64_t kPerThread = 20'000;
  constexpr std::uint32_t kThreads = 4;
  SegmentOptions options = Options();
  options.lanes = kThreads;
  options.lane_capacity = 256;
  const auto writer = CreateOrFail(options);
  const auto reader = AttachOrFail(writer->path());
  std::atomic<std::uint32_t> running{kThreads};
  std::atomic<std::uint64_t> pushed{0};
  std::vector<std::thread> threads;
  for (std::uint32_t site = 0; site < kThreads; ++site) {
    threads.emplace_back([&writer, &running, &pushed, site] {
      for (std::uint64_t step = 0; step < kPerThread; ++step) {
        if (writer->Push(MakeRecord(site, step)) == PushOutcome::kPushed) pushed.fetch_add(1);
        if (step % 64 == 0) std::this_thread::yield();
      }
      running.fetch_sub(1);
    });
  }
  std::map<std::uint32_t, std::uint64_t> next_step;
  std::uint64_t received = 0;
  bool finished = false;
  while (!finished) {
    finished = running.load() == 0;
    for (const Record& record : DrainAll(*reader)) {
      ++received;
      ASSERT_TRUE(IsIntact(record));
      ASSERT_GE(record.step, next_step[record.site]);
      next_step[record.site] = record.step + 1;
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received, pushed.load());
  EXPECT_EQ(writer->attempts(), kThreads * kPerThread);
  EXPECT_EQ(received + reader->dropped_total(), kThreads * kPerThread);
  std::uint64_t by_site = 0;
  for (std::uint32_t site = 0; site < kThreads; ++site) by_site += reader->SiteDropped(site);
  EXPECT_EQ(by_site, reader->dropped_total());
}

TEST_F(RingTest, EndedThreadsGiveTheirLanesBack) {
  SegmentOptions options = Options();
  options.lanes = 1;
  options.lane_capacity = 256;
  const auto writer = CreateOrFail(options);
  const auto reader = AttachOrFail(writer->path());
  for (std::uint64_t step = 0; step < 100; ++step) {
    std::thread([&writer, step] { EXPECT_EQ(writer->Push(MakeRecord(0, step)), PushOutcome::kPushed); }).join();
  }
  const std::vector<Record> received = DrainAll(*reader);
  ASSERT_EQ(received.size(), 100u);
  for (std::uint64_t step = 0; step < 100; ++step) EXPECT_EQ(received[step].attempt, step);
  EXPECT_EQ(reader->counters()[0].owner_tid, 0u);
}

TEST_F(RingTest, TwoHundredThreadsThatComeAndGoAreAllAccountedFor) {
  constexpr std::uint64_t kThreads = 200, kPerThread = 10;
  SegmentOptions options = Options();
  options.lane_capacity = 4096;
  const auto writer = CreateOrFail(options);
  const auto reader = AttachOrFail(writer->path());
  for (std::uint64_t first = 0; first < kThreads; first += 10) {
    std::vector<std::thread> threads;
    for (std::uint64_t i = first; i < first + 10; ++i) {
      threads.emplace_back([&writer, i] {
        for (std::uint64_t step = 0; step < kPerThread; ++step) writer->Push(MakeRecord(i % 16, i * kPerThread + step));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::set<std::uint64_t> steps;
  for (const Record& record : DrainAll(*reader)) {
    EXPECT_TRUE(IsIntact(record));
    EXPECT_TRUE(steps.insert(record.step).second);
  }
  EXPECT_EQ(writer->attempts(), kThreads * kPerThread);
  EXPECT_EQ(steps.size() + reader->dropped_total(), kThreads * kPerThread);
  for (const LaneCounters& lane : reader->counters()) EXPECT_EQ(lane.owner_tid, 0u) << "no lane stays taken";
}

TEST_F(RingTest, ThreadsWithoutALaneAreCounted) {
  SegmentOptions options = Options();
  options.lanes = 1;
  const auto writer = CreateOrFail(options);
  const auto reader = AttachOrFail(writer->path());
  ASSERT_EQ(writer->Push(MakeRecord(0, 0)), PushOutcome::kPushed);
  std::thread([&writer] {
    EXPECT_EQ(writer->Push(MakeRecord(2, 1)), PushOutcome::kNoLane);
    EXPECT_EQ(writer->Push(MakeRecord(2, 2)), PushOutcome::kNoLane);
  }).join();
  EXPECT_EQ(writer->attempts(), 3u);
  EXPECT_EQ(reader->dropped_total(), 2u);
  EXPECT_EQ(reader->SiteDropped(2), 2u);
  EXPECT_EQ(reader->counters()[0].dropped, 0u);
}

TEST_F(RingTest, OneThreadMayAlternateBetweenWriters) {
  const auto first = CreateOrFail(Options());
  const auto second = CreateOrFail(Options());
  ASSERT_NE(first->path(), second->path());
  for (std::uint64_t step = 0; step < 40; ++step) {
    ASSERT_EQ(first->Push(MakeRecord(1, step)), PushOutcome::kPushed);
    ASSERT_EQ(second->Push(MakeRecord(2, step)), PushOutcome::kPushed);
  }
  for (const auto* writer : {first.get(), second.get()}) {
    const auto reader = AttachOrFail(writer->path());
    const std::vector<Record> received = DrainAll(*reader);
    ASSERT_EQ(received.size(), 40u);
    for (std::uint64_t step = 0; step < 40; ++step) {
      EXPECT_EQ(received[step].step, step);
      EXPECT_EQ(received[step].site, writer == first.get() ? 1u : 2u);
    }
    // A thread that came back found its lane: no second one was claimed.
    EXPECT_EQ(reader->counters()[0].consumed, 40u);
    EXPECT_EQ(reader->counters()[1].owner_tid, 0u);
  }
}

TEST_F(RingTest, AThreadOutlivesWritersThatItPushedTo) {
  for (std::uint64_t round = 0; round < 50; ++round) {
    const auto writer = CreateOrFail(Options());
    ASSERT_NE(writer, nullptr);
    ASSERT_EQ(writer->Push(MakeRecord(1, round)), PushOutcome::kPushed);
    EXPECT_EQ(writer->attempts(), 1u);
    const auto reader = AttachOrFail(writer->path());
    ASSERT_EQ(DrainAll(*reader).size(), 1u);
    reader->Unlink();
  }
}

TEST_F(RingTest, AThreadMayEndAfterItsWriter) {
  auto writer = CreateOrFail(Options());
  std::atomic<bool> pushed{false}, destroyed{false};
  std::thread thread([&] {
    writer->Push(MakeRecord(0, 0));
    pushed.store(true);
    while (!destroyed.load()) std::this_thread::yield();
  });
  while (!pushed.load()) std::this_thread::yield();
  writer.reset();
  destroyed.store(true);
  thread.join();  // its lane lay in a mapping that is gone
}

TEST_F(RingTest, CloseEndsTheSegmentCleanly) {
  auto writer = CreateOrFail(Options());
  const auto reader = AttachOrFail(writer->path());
  writer->Push(MakeRecord(0, 0));
  EXPECT_TRUE(writer->enabled());
  writer->Close();
  EXPECT_FALSE(writer->enabled());
  EXPECT_EQ(writer->Push(MakeRecord(0, 1)), PushOutcome::kDisabled);
  EXPECT_EQ(writer->manifest().Append(ReadyEntry{1}).code, Errc::kDisabled);
  EXPECT_EQ(writer->attempts(), 1u);
  EXPECT_EQ(reader->owner_state(), OwnerState::kClosed);
  EXPECT_EQ(DrainAll(*reader).size(), 1u);
  const std::string path = writer->path();
  writer.reset();
  EXPECT_EQ(reader->owner_state(), OwnerState::kClosed);
  const auto late = AttachOrFail(path);
  EXPECT_EQ(late->owner_state(), OwnerState::kClosed);
  EXPECT_EQ(DrainAll(*late).size(), 0u) << "released records are not delivered again";
}

TEST_F(RingTest, HeartbeatMovesForward) {
  const auto writer = CreateOrFail(Options());
  const auto reader = AttachOrFail(writer->path());
  const std::uint64_t before = reader->heartbeat_ns();
  EXPECT_GT(before, 0u);
  writer->Heartbeat();
  EXPECT_GT(reader->heartbeat_ns(), before);
}

TEST_F(RingTest, DurableHeadsWinOverSharedMemoryButNeverBackwards) {
  const auto writer = CreateOrFail(Options());
  for (std::uint64_t step = 0; step < 20; ++step) writer->Push(MakeRecord(0, step));
  std::vector<LaneCheckpoint> durable;
  {
    const auto reader = AttachOrFail(writer->path());
    reader->Drain([](std::uint32_t, std::span<const Record>) {}, 12);
    durable = reader->heads();  // made durable, but the daemon dies before Release()
  }
  const auto resume = [&durable](const SegmentIdentity&) { return durable; };
  {
    auto reader = SegmentReader::Attach(writer->path(), {}, resume);
    ASSERT_TRUE(reader.ok());
    const std::vector<Record> rest = DrainAll(*reader.value());
    ASSERT_EQ(rest.size(), 8u);
    EXPECT_EQ(rest[0].step, 12u);
  }
  // An old checkpoint must not bring back slots that were released.
  auto reader = SegmentReader::Attach(writer->path(), {}, resume);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(DrainAll(*reader.value()).size(), 0u);
}

}  // namespace
}  // namespace neuraldbg::testing
