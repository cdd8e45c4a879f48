// A consumer killed at random instants and started again: every record that was in the ring is delivered exactly once.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/shared/checkpoint_consumer.h"
#include "tests/shared/crash_fixture.h"
#include "tests/shared/kill_windows.h"

namespace neuraldbg::testing {
namespace {

constexpr std::uint32_t kThreads = 2;

// What the producing threads know; the checkpoint must say the same in the end.
struct Produced {
  std::array<std::atomic<std::uint64_t>, kThreads> started{}, pushed{}, hash{};
  std::atomic<bool> stop{false}, stopped{false};
};

void Produce(SegmentWriter& writer, Produced& produced, std::uint32_t thread) {
  std::uint64_t hash = 0, pushed = 0;
  for (std::uint64_t step = 0; !produced.stop.load(std::memory_order_relaxed); ++step) {
    if (writer.Push(MakeRecord(thread, step)) == PushOutcome::kPushed) {
      hash = Mix(hash, step);
      ++pushed;
    }
    produced.started[thread].store(step + 1, std::memory_order_relaxed);
    if (step % 64 == 0) std::this_thread::yield();
  }
  produced.pushed[thread].store(pushed);
  produced.hash[thread].store(hash);
}

int RunProducer(const SegmentOptions& options, Produced& produced) {
  const auto writer = SegmentWriter::Create(options);
  if (!writer.ok()) return 1;
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { Produce(*writer.value(), produced, i); });
  }
  for (std::thread& thread : threads) thread.join();
  produced.stopped.store(true);
  for (;;) ::pause();
}

constexpr int kRepeats = 200;  // so that kills at random times meet checkpoint and release

using ConsumerKillTest = CrashTest;

TEST_F(ConsumerKillTest, NothingIsLostAndNothingDeliveredTwice) {
  SegmentOptions options = Options();
  options.lane_capacity = 1024;
  SharedObject<Produced> produced;
  ChildProcess producer([&] { return RunProducer(options, *produced); });
  ASSERT_TRUE(WaitFor([this] { return !OnlySegment().empty(); }));
  const std::string path = OnlySegment();
  SharedObject<ConsumerMemory> memory;
  KillWindows windows("consumer", Rounds(300, 1000), {"attaching", "draining", "writing the checkpoint", "releasing"});
  int round = 0;
  for (; windows.Wanted(round); ++round) {
    memory->stage.store(ConsumerStage::kAttaching);
    ChildProcess consumer([&] { return Consume(path, *memory, UntilEmpty::kNo, kRepeats); });
    // One in four is killed before it has attached.
    if (Random(0, 3) != 0) {
      ASSERT_TRUE(WaitFor([&] { return memory->stage.load() != ConsumerStage::kAttaching; }));
    }
    SleepRandomly(1000);
    consumer.Kill();
    windows.Hit(memory->stage.load());
    if (Random(0, 20) == 0) SleepRandomly(10000);
  }
  produced->stop.store(true);
  ASSERT_TRUE(WaitFor([&] { return produced->stopped.load(); }));
  ASSERT_EQ(Consume(path, *memory, UntilEmpty::kYes), 0);
  const Checkpoint& result = memory->copies[memory->valid.load()];
  const auto reader = AttachOrFail(path);
  std::uint64_t started = 0, delivered = 0;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    EXPECT_EQ(result.delivered[thread], produced->pushed[thread].load());
    EXPECT_EQ(result.hash[thread], produced->hash[thread].load());
    started += produced->started[thread].load();
    delivered += result.delivered[thread];
  }
  EXPECT_EQ(result.damaged, 0u);
  EXPECT_EQ(delivered + reader->dropped_total(), started);
  windows.Report(round);
  std::printf("consumer: %llu delivered exactly once, %llu dropped\n", static_cast<unsigned long long>(delivered),
              static_cast<unsigned long long>(reader->dropped_total()));
}

}  // namespace
}  // namespace neuraldbg::testing
