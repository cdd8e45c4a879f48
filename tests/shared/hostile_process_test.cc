// Another process that may write the file writes nonsense into it, at once and for as long as it likes: the reader
// delivers nothing that is not a record, the trainer goes on, and both account for what they did.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>

#include "tests/shared/crash_fixture.h"
#include "tests/shared/kill_windows.h"

namespace neuraldbg::testing {
namespace {

using HostileProcessTest = CrashTest;

std::span<std::byte> MapShared(const std::string& path, std::uint64_t begin, std::uint64_t end) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* memory = ::mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(begin));
  ::close(fd);
  return {static_cast<std::byte*>(memory), end - begin};
}

// Plausible and absurd numbers, where they hurt: in the first bytes of lines as well as anywhere.
void Scribble(std::span<std::byte> memory, std::mt19937& random, std::uint64_t near) {
  const std::uint64_t values[] = {0, 1, near, near + 1, near + 64, near - 65, 1ull << 32, ~0ull, random()};
  for (;;) {
    std::size_t at = random() % (memory.size() / 8);
    if (random() % 2 == 0) at = at / (kLayoutLine / 8) * (kLayoutLine / 8) + random() % 4;
    auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(memory.data() + at * 8);
    word.store(values[random() % std::size(values)], std::memory_order_relaxed);
  }
}

TEST_F(HostileProcessTest, AScribbledConsumerPageCostsTheTrainerRecordsOnly) {
  const auto writer = CreateOrFail(Options());
  const SegmentHeader header = ReadHeader(writer->path());
  const auto reader = AttachOrFail(writer->path());
  ChildProcess scribbler([&] {
    std::mt19937 random(7);
    Scribble(MapShared(writer->path(), header.offsets.consumer, header.offsets.site_drops), random, 64);
    return 0;
  });
  std::uint64_t pushed = 0, dropped = 0;
  const int pushes = Rounds(2'000'000, 20'000'000);
  for (int step = 0; step < pushes; ++step) {
    const PushOutcome outcome =
        writer->Push(MakeRecord(static_cast<std::uint32_t>(step) % 16, static_cast<std::uint64_t>(step)));
    ASSERT_TRUE(outcome == PushOutcome::kPushed || outcome == PushOutcome::kDropped);
    ++(outcome == PushOutcome::kPushed ? pushed : dropped);
  }
  scribbler.Kill();
  EXPECT_GT(pushed, 0u);
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(writer->attempts(), static_cast<std::uint64_t>(pushes));
  EXPECT_EQ(writer->dropped(), dropped);
  std::uint64_t by_site = 0;
  for (std::uint32_t site = 0; site < 16; ++site) by_site += reader->SiteDropped(site);
  EXPECT_EQ(by_site, dropped);
}

bool LooksLikeARecord(const Record& record) {
  return record.site < 16 && record.kind > RecordKind::kNone && static_cast<int>(record.kind) < kRecordKindCount &&
         static_cast<int>(record.phase) < kPhaseCount && record.dtype <= DType::kFloat8;
}

// The writer's own pages this time. One lane is left alone: nobody else's trouble is its trouble.
TEST_F(HostileProcessTest, AScribbledProducerPageIsNeverBelieved) {
  const int rounds = Rounds(100, 1000);
  std::uint64_t delivered = 0, invalid = 0, quarantined = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::string path = MakeClosedSegment(Options());
    const SegmentHeader header = ReadHeader(path);
    SharedObject<std::atomic<bool>> started;
    ChildProcess scribbler([&] {
      std::mt19937 random(static_cast<unsigned>(round));
      started->store(true);
      // All but the header: what stands there is copied once, at attach.
      Scribble(MapShared(path, kLayoutPage, header.offsets.total), random, 64);
      return 0;
    });
    const auto reader = AttachOrFail(path);
    ASSERT_NE(reader, nullptr);
    std::array<std::uint64_t, 2> next_attempt{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
    ASSERT_TRUE(WaitFor([&] { return started->load(); }));
    while (std::chrono::steady_clock::now() < end) {
      reader->Drain([&](std::uint32_t lane, std::span<const Record> records) {
        for (const Record& record : records) {
          ASSERT_LT(lane, 2u);
          ASSERT_TRUE(LooksLikeARecord(record));
          ASSERT_GE(record.attempt, next_attempt[lane]);
          next_attempt[lane] = record.attempt + 1;
          ++delivered;
        }
      });
      reader->Release();
      reader->manifest().Poll([](const ManifestEntry&) {});
      for (const Record& record : reader->ReadBlackBox()) ASSERT_TRUE(LooksLikeARecord(record));
      reader->Pending();
      reader->dropped_total();
      reader->owner_state();
    }
    scribbler.Kill();
    EXPECT_FALSE(reader->poisoned());
    for (const LaneCounters& lane : reader->counters()) {
      invalid += lane.invalid;
      quarantined += lane.quarantined ? 1 : 0;
    }
    ::unlink(path.c_str());
  }
  EXPECT_TRUE(kSanitized || invalid + quarantined > 0) << "the nonsense was seen";
}

}  // namespace
}  // namespace neuraldbg::testing
