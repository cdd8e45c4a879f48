// A producer killed at random instants: whatever its threads were doing, every push that was begun is received, counted
// as dropped, or the one record that its thread had not yet published.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "tests/shared/crash_fixture.h"
#include "tests/shared/kill_windows.h"

namespace neuraldbg::testing {
namespace {

constexpr std::uint32_t kMaxThreads = 3;
constexpr std::uint32_t kSitesPerThread = 4;

enum class ThreadPhase : std::uint32_t { kBefore, kFirstPush, kPushing, kEnding };

// What a thread says of itself, in memory that outlives it. Its own program order is what a death cuts.
struct alignas(128) ThreadLedger {
  std::atomic<std::uint64_t> started{0}, returned{0};
  std::atomic<std::uint32_t> tid{0};
  std::atomic<ThreadPhase> phase{ThreadPhase::kBefore};
};
struct Ledger {
  std::array<ThreadLedger, kMaxThreads> threads;
  std::atomic<bool> up{false};
};

std::uint32_t SiteOf(std::uint32_t thread, std::uint64_t step) {
  return thread * kSitesPerThread + static_cast<std::uint32_t>(step % kSitesPerThread);
}

void PushOne(SegmentWriter& writer, ThreadLedger& ledger, std::uint32_t thread) {
  const std::uint64_t step = ledger.started.load(std::memory_order_relaxed);
  const Record record = MakeRecord(SiteOf(thread, step), step);
  ledger.started.store(step + 1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  writer.Push(record);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  ledger.returned.store(step + 1, std::memory_order_relaxed);
}

struct Received {
  std::array<std::uint64_t, kMaxThreads> count{};
  std::array<std::vector<bool>, kMaxThreads> seen;
  std::uint64_t total = 0;

  void Take(SegmentReader& reader) {
    for (const Record& record : DrainAll(reader)) {
      const std::uint32_t thread = record.site / kSitesPerThread;
      ASSERT_LT(thread, kMaxThreads);
      ASSERT_TRUE(IsIntact(record));
      if (seen[thread].size() <= record.step) seen[thread].resize(record.step + 1024);
      ASSERT_FALSE(seen[thread][record.step]) << "twice";
      seen[thread][record.step] = true;
      ++count[thread];
      ++total;
    }
  }
};

std::uint64_t DroppedAtSitesOf(const SegmentReader& reader, std::uint32_t thread) {
  std::uint64_t dropped = 0;
  for (std::uint64_t step = 0; step < kSitesPerThread; ++step) dropped += reader.SiteDropped(SiteOf(thread, step));
  return dropped;
}

void ExpectNothingInvalid(const SegmentReader& reader) {
  for (const LaneCounters& lane : reader.counters()) {
    EXPECT_EQ(lane.invalid, 0u);
    EXPECT_EQ(lane.resyncs, 0u);
  }
}

class ProducerKillTest : public CrashTest {
 protected:
  SegmentOptions RoundOptions() {
    SegmentOptions options = Options();
    options.lanes = 4;
    options.lane_capacity = 64u << Random(0, 4);
    return options;
  }
  // Forks a producer whose threads run `body(writer, ledger, thread)`; lets it live a while with a reader that mostly
  // keeps up, kills it, and takes what is left.
  void Run(const SegmentOptions& options, std::uint32_t threads, Ledger& ledger, std::unique_ptr<SegmentReader>& reader,
           Received& received, void (*body)(SegmentWriter&, ThreadLedger&, std::uint32_t)) {
    ChildProcess child([&] {
      const auto writer = SegmentWriter::Create(options);
      std::vector<std::thread> pool;
      for (std::uint32_t i = 0; i < threads; ++i) {
        pool.emplace_back([&, i] { body(*writer.value(), ledger.threads[i], i); });
      }
      ledger.up.store(true);
      for (std::thread& thread : pool) thread.join();
      return 0;
    });
    ASSERT_TRUE(WaitFor([&] { return ledger.up.load(); }));
    reader = AttachOrFail(OnlySegment());
    ASSERT_NE(reader, nullptr);
    const bool keeps_up = Random(0, 7) != 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(Random(0, 3000));
    while (keeps_up && std::chrono::steady_clock::now() < end) {
      received.Take(*reader);
      if (Random(0, 15) == 0) SleepRandomly(200);
    }
    if (!keeps_up) std::this_thread::sleep_until(end);
    EXPECT_EQ(reader->owner_state(), OwnerState::kAlive);
    child.Kill();
    EXPECT_EQ(reader->owner_state(), OwnerState::kDead);
    received.Take(*reader);
    ExpectNothingInvalid(*reader);
    for (const Record& record : reader->ReadBlackBox()) EXPECT_TRUE(IsIntact(record));
    reader->Unlink();
  }
};

enum class PushWindow { kOutside, kUnpublished, kSiteCountedOnly, kAccountedNotReturned };

// Where a thread that owns a lane was when it died; checks that it accounts for all that it began.
PushWindow Account(const SegmentReader& reader, const ThreadLedger& thread, std::uint32_t index,
                   std::uint64_t received) {
  const std::uint64_t started = thread.started.load();
  std::uint64_t dropped = 0;
  for (const LaneCounters& lane : reader.counters()) {
    if (lane.owner_tid != 0 && lane.owner_tid == thread.tid.load()) dropped = lane.dropped;
  }
  const std::uint64_t accounted = received + dropped;
  EXPECT_LE(accounted, started);
  EXPECT_LE(started - accounted, 1u) << "at most the record that it was writing";
  const std::uint64_t at_sites = DroppedAtSitesOf(reader, index);
  EXPECT_LE(at_sites - dropped, started - accounted) << "a site counts before the lane does, and only the same drop";
  if (at_sites > dropped) return PushWindow::kSiteCountedOnly;
  if (accounted < started) return PushWindow::kUnpublished;
  return thread.returned.load() < started ? PushWindow::kAccountedNotReturned : PushWindow::kOutside;
}

TEST_F(ProducerKillTest, EveryPushThatBeganIsReceivedOrCountedOrTheOneInTheMaking) {
  KillWindows windows(
      "producer", Rounds(300, 1000),
      {"outside a push", "before publication", "drop counted for the site alone", "accounted, not returned"});
  std::uint64_t received_total = 0, dropped_total = 0;
  int round = 0;
  for (; windows.Wanted(round); ++round) {
    SharedObject<Ledger> ledger;
    const auto threads = static_cast<std::uint32_t>(Random(1, 3));
    std::unique_ptr<SegmentReader> reader;
    Received received;
    Run(RoundOptions(), threads, *ledger, reader, received,
        [](SegmentWriter& writer, ThreadLedger& own, std::uint32_t index) {
          own.tid.store(static_cast<std::uint32_t>(::syscall(SYS_gettid)));
          for (;;) PushOne(writer, own, index);
        });
    ASSERT_FALSE(HasFailure());
    for (std::uint32_t i = 0; i < threads; ++i) {
      windows.Hit(Account(*reader, ledger->threads[i], i, received.count[i]));
    }
    received_total += received.total;
    dropped_total += reader->dropped_total();
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  windows.Report(round);
  std::printf("producer: %llu received, %llu dropped\n", static_cast<unsigned long long>(received_total),
              static_cast<unsigned long long>(dropped_total));
  EXPECT_GT(received_total, 0u);
  EXPECT_GT(dropped_total, 0u);
}

// Threads that live for some pushes, more of them than lanes: claims and releases are where the kills fall.
void ComeAndGo(SegmentWriter& writer, ThreadLedger& own, std::uint32_t index) {
  for (;;) {
    own.phase.store(ThreadPhase::kBefore, std::memory_order_relaxed);
    std::thread([&writer, &own, index] {
      own.phase.store(ThreadPhase::kFirstPush, std::memory_order_relaxed);
      PushOne(writer, own, index);
      own.phase.store(ThreadPhase::kPushing, std::memory_order_relaxed);
      for (int i = 0; i < 500; ++i) PushOne(writer, own, index);
      own.phase.store(ThreadPhase::kEnding, std::memory_order_relaxed);
    }).join();
  }
}

enum class LifeWindow { kBetweenThreads, kClaiming, kPushing, kReleasing };

TEST_F(ProducerKillTest, ThreadsThatComeAndGoLoseAtMostOneRecordEach) {
  KillWindows windows("threads", Rounds(300, 1000),
                      {"between threads", "first push and claim", "later pushes", "thread end and release"});
  int round = 0;
  for (; windows.Wanted(round); ++round) {
    SharedObject<Ledger> ledger;
    const auto threads = static_cast<std::uint32_t>(Random(1, 3));
    SegmentOptions options = RoundOptions();
    options.lanes = 2;
    std::unique_ptr<SegmentReader> reader;
    Received received;
    Run(options, threads, *ledger, reader, received, &ComeAndGo);
    ASSERT_FALSE(HasFailure());
    std::uint64_t started = 0;
    for (std::uint32_t i = 0; i < threads; ++i) {
      const ThreadLedger& thread = ledger->threads[i];
      windows.Hit(static_cast<LifeWindow>(thread.phase.load()));
      started += thread.started.load();
      const std::uint64_t accounted = received.count[i] + DroppedAtSitesOf(*reader, i);
      ASSERT_LE(accounted, thread.started.load());
      ASSERT_LE(thread.started.load() - accounted, 1u);
    }
    const std::uint64_t accounted = received.total + reader->dropped_total();
    ASSERT_LE(accounted, started);
    ASSERT_LE(started - accounted, threads);
  }
  windows.Report(round);
}

}  // namespace
}  // namespace neuraldbg::testing
