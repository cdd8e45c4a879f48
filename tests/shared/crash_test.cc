// Processes that die: at any instant, on either side, and while forked.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <set>

#include "shared/segment_name.h"
#include "shared/segment_sweep.h"
#include "tests/shared/child_process.h"
#include "tests/shared/segment_fixture.h"

namespace neuraldbg::testing {
namespace {

namespace fs = std::filesystem;

// Enough that a kill lands in every part of a push now and then, few enough for every test run; more by environment:
// NEURALDBG_KILLS=1000.
int Kills() {
  const char* text = std::getenv("NEURALDBG_KILLS");
  return text != nullptr ? std::atoi(text) : 60;
}

class CrashTest : public SegmentTest {
 protected:
  std::string OnlySegment() const {
    for (const auto& entry : fs::directory_iterator(directory())) {
      if (IsSegmentFileName(entry.path().filename().string())) return entry.path().string();
    }
    return {};
  }
  void SleepRandomly(int max_microseconds) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution<int>(0, max_microseconds)(random_)));
  }
  std::mt19937 random_{20240607};
};

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

struct ProducerProgress {
  std::atomic<std::uint64_t> started{0};
};

TEST_F(CrashTest, AKilledProducerLosesAtMostTheRecordItWasWriting) {
  std::uint64_t total = 0, unpublished = 0;
  for (int round = 0; round < Kills(); ++round) {
    SharedObject<ProducerProgress> progress;
    ChildProcess child([&] {
      const auto writer = SegmentWriter::Create(Options());
      for (std::uint64_t step = 0;; ++step) {
        progress->started.store(step + 1, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        writer.value()->Push(MakeRecord(step % 16, step));
      }
      return 0;
    });
    ASSERT_TRUE(WaitFor([this] { return !OnlySegment().empty(); }));
    const auto reader = AttachOrFail(OnlySegment());
    std::uint64_t received = 0;
    const auto take = [&] {
      for (const Record& record : DrainAll(*reader)) {
        ++received;
        ASSERT_TRUE(IsIntact(record));
        ASSERT_EQ(record.attempt, record.step) << "attempts are numbered without gaps";
      }
    };
    SleepRandomly(2000);
    take();
    SleepRandomly(1000);
    child.Kill();
    take();
    EXPECT_EQ(reader->owner_state(), OwnerState::kDead);
    EXPECT_EQ(reader->counters()[0].invalid, 0u);
    const std::uint64_t accounted = received + reader->dropped_total();
    ASSERT_LE(accounted, progress->started.load());
    ASSERT_LE(progress->started.load() - accounted, 1u);
    unpublished += progress->started.load() - accounted;
    std::uint64_t by_site = 0;
    for (std::uint32_t site = 0; site < 16; ++site) by_site += reader->SiteDropped(site);
    // The site's counter moves before the lane's, so a death in between counts the one record in flight at most.
    ASSERT_LE(by_site - reader->dropped_total(), 1u);
    total += accounted;
    reader->Unlink();
  }
  RecordProperty("records", std::to_string(total));
  RecordProperty("in_flight", std::to_string(unpublished));
  EXPECT_GT(total, 0u);
}

// What the consumer makes durable in one piece: two copies, the newer complete one counts.
struct Checkpoint {
  std::uint64_t version = 0, delivered = 0, hash = 0;
  LaneCheckpoint lanes[2];
};
struct ConsumerMemory {
  Checkpoint copies[2];
  std::atomic<std::uint32_t> valid{0};
  std::atomic<std::uint32_t> attached{0};
};

std::uint64_t Mix(std::uint64_t hash, std::uint64_t step) { return (hash ^ step) * 1099511628211ull + 1; }

// Drains for ever (or, with `until_empty`, once), delivering each record exactly once into the checkpoint.
int Consume(const std::string& path, ConsumerMemory& memory, bool until_empty) {
  Checkpoint now = memory.copies[memory.valid.load()];
  const auto attached = SegmentReader::Attach(
      path, {}, [&now](const SegmentIdentity&) { return std::vector<LaneCheckpoint>(now.lanes, now.lanes + 2); });
  if (!attached.ok()) return 1;
  SegmentReader& reader = *attached.value();
  memory.attached.fetch_add(1);
  for (;;) {
    const std::size_t taken = reader.Drain([&now](std::uint32_t, std::span<const Record> records) {
      for (const Record& record : records) {
        now.hash = Mix(now.hash, record.step);
        ++now.delivered;
      }
    });
    if (taken == 0 && until_empty) return 0;
    const std::vector<LaneCheckpoint> heads = reader.heads();
    std::copy(heads.begin(), heads.end(), now.lanes);
    ++now.version;
    const std::uint32_t next = 1 - memory.valid.load();
    memory.copies[next] = now;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    memory.valid.store(next);
    reader.Release();
  }
}

TEST_F(CrashTest, AKilledConsumerNeitherLosesNorRepeats) {
  const auto writer = CreateOrFail(Options());
  SharedObject<ConsumerMemory> memory;
  std::uint64_t step = 0, pushed = 0, hash = 0;
  const auto push_some = [&](int count) {
    for (int i = 0; i < count; ++i, ++step) {
      if (writer->Push(MakeRecord(0, step)) != PushOutcome::kPushed) continue;
      hash = Mix(hash, step);
      ++pushed;
    }
  };
  for (int round = 0; round < Kills(); ++round) {
    const std::uint32_t before = memory->attached.load();
    ChildProcess consumer([&] { return Consume(writer->path(), *memory, false); });
    ASSERT_TRUE(WaitFor([&] { return memory->attached.load() != before; }));
    const int bursts = std::uniform_int_distribution<int>(1, 40)(random_);
    for (int burst = 0; burst < bursts; ++burst) push_some(50);
    consumer.Kill();
  }
  push_some(10);
  ASSERT_EQ(Consume(writer->path(), *memory, true), 0);
  const Checkpoint& result = memory->copies[memory->valid.load()];
  EXPECT_EQ(result.delivered, pushed);
  EXPECT_EQ(result.hash, hash);
  EXPECT_EQ(pushed + writer->dropped(), step);
  EXPECT_EQ(writer->attempts(), step);
  RecordProperty("delivered", std::to_string(result.delivered));
}

TEST_F(CrashTest, AKillDuringCreationLeavesNothingHalfMadeVisible) {
  SegmentOptions options = Options();
  options.lane_capacity = 4096;
  for (int round = 0; round < Kills(); ++round) {
    ChildProcess child([&options] {
      for (;;) {
        const auto writer = SegmentWriter::Create(options);
        if (!writer.ok()) return 1;
        ::unlink(writer.value()->path().c_str());
      }
      return 0;
    });
    SleepRandomly(8000);
    child.Kill();
    const std::string visible = OnlySegment();
    if (visible.empty()) continue;
    const auto reader = AttachOrFail(visible);
    ASSERT_NE(reader, nullptr);
    EXPECT_NE(reader->owner_state(), OwnerState::kAlive);
    reader->Unlink();
  }
  SweepOptions sweep;
  sweep.directory = directory();
  sweep.uid = ::geteuid();
  sweep.temporary_ttl = std::chrono::seconds(-1);
  RecordProperty("temporary_files", std::to_string(SweepSegments(sweep).temporary_removed));
  EXPECT_TRUE(fs::is_empty(directory()));
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
  ChildProcess consumer([&] { return Consume(writer->path(), *memory, false); });
  ASSERT_TRUE(WaitFor([&] { return memory->attached.load() != 0; }));
  ASSERT_EQ(::kill(consumer.pid(), SIGSTOP), 0);
  for (std::uint64_t step = 0; step < 200'000; ++step) writer->Push(MakeRecord(0, step));
  EXPECT_EQ(writer->attempts(), 200'000u);
  EXPECT_GT(writer->dropped(), 0u);
}

}  // namespace
}  // namespace neuraldbg::testing
