// A process killed while it makes its segment, and a file cut under a live mapping: nothing half-made is visible, and
// nobody but the owner of the file is hurt.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "shared/segment_sweep.h"
#include "tests/shared/crash_fixture.h"
#include "tests/shared/kill_windows.h"

namespace neuraldbg::testing {
namespace {

namespace fs = std::filesystem;

enum class CreationWindow { kNothing, kNotReserved, kNotPublished, kPublished };

class CreationKillTest : public CrashTest {
 protected:
  // What the dead process `pid` left, told by its file.
  CreationWindow Left(pid_t pid) const {
    const std::string infix = "." + std::to_string(pid) + ".";
    for (const auto& entry : fs::directory_iterator(directory())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(kTemporaryPrefix) || name.find(infix) == std::string::npos) continue;
      if (entry.file_size() == 0) return CreationWindow::kNotReserved;
      return CreationWindow::kNotPublished;
    }
    return OnlySegment().empty() ? CreationWindow::kNothing : CreationWindow::kPublished;
  }
};

TEST_F(CreationKillTest, NothingHalfMadeIsVisibleAndTheSweepRemovesTheRest) {
  SegmentOptions options = Options();
  options.lanes = 1;
  options.manifest_bytes = kMinManifestBytes;  // small: the steps of creation take about the same time
  KillWindows windows("creation", Rounds(100, 400), {"no file", "memory not reserved", "not published", "published"});
  int round = 0;
  for (; windows.Wanted(round); ++round) {
    SharedObject<std::atomic<bool>> running;
    ChildProcess child([&] {
      running->store(true);
      for (;;) {
        const auto writer = SegmentWriter::Create(options);
        if (!writer.ok()) return 1;
        ::unlink(writer.value()->path().c_str());
      }
      return 0;
    });
    ASSERT_TRUE(WaitFor([&] { return running->load(); }));
    const pid_t pid = child.pid();
    SleepRandomly(2000);
    child.Kill();
    windows.Hit(Left(pid));
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
  SweepSegments(sweep);
  EXPECT_TRUE(fs::is_empty(directory()));
  windows.Report(round);
}

enum class Part { kHeader, kProducer, kConsumer, kSiteDrops, kManifest, kBlackBoxes, kRecords };
constexpr int kParts = 7;

class TruncationTest : public CrashTest {
 protected:
  // A length that ends inside `part`.
  std::uint64_t CutInside(const SegmentOffsets& offsets, Part part) {
    const std::array<std::uint64_t, kParts + 1> begins{0,
                                                       offsets.producer,
                                                       offsets.consumer,
                                                       offsets.site_drops,
                                                       offsets.manifest,
                                                       offsets.black_boxes,
                                                       offsets.records,
                                                       offsets.total};
    const auto index = static_cast<std::size_t>(part);
    return begins[index] +
           static_cast<std::uint64_t>(Random(0, static_cast<int>(begins[index + 1] - begins[index]) - 1));
  }
};

// Uses the reader for all that a daemon uses it for. Whatever it delivers is whole; but where the file grows again, the
// zeros of the last page stay, and a record may have lost its end to them.
void UseAll(SegmentReader& reader, std::array<std::uint64_t, 2>& next_step, bool grows_again) {
  for (const Record& record : DrainAll(reader)) {
    ASSERT_LT(record.site, 2u);
    ASSERT_TRUE(grows_again || IsIntact(record));
    ASSERT_GE(record.step, next_step[record.site]);
    next_step[record.site] = record.step + 1;
  }
  for (const Record& record : reader.ReadBlackBox()) ASSERT_TRUE(grows_again || IsIntact(record));
  reader.manifest().Poll([](const ManifestEntry& entry) { ASSERT_EQ(std::get<ReadyEntry>(entry).step % 7, 0u); });
  reader.counters();
  reader.heads();
  reader.dropped_total();
  reader.SiteDropped(15);
  reader.heartbeat_ns();
  reader.owner_state();
  reader.Pending();
}

int ProduceForEver(const SegmentOptions& options) {
  const auto writer = SegmentWriter::Create(options);
  if (!writer.ok()) return 1;
  std::thread second([&writer] {
    for (std::uint64_t step = 0;; ++step) writer.value()->Push(MakeRecord(1, step));
  });
  for (std::uint64_t step = 0;; ++step) {
    writer.value()->Push(MakeRecord(0, step));
    if (step % 1024 == 0) writer.value()->manifest().Append(ReadyEntry{step * 7});
  }
}

TEST_F(TruncationTest, ACutUnderTheMappingCostsThisSegmentAlone) {
  KillWindows parts("truncation", Rounds(100, 300),
                    {"header", "producer", "consumer", "site drops", "manifest", "black boxes", "records"});
  KillWindows outcomes("truncation", Rounds(100, 300), {"gave the segment up", "grew again before it looked"});
  const std::string other_path = MakeClosedSegment(Options());
  const auto other = AttachOrFail(other_path);
  int round = 0;
  for (; outcomes.Wanted(round) || parts.Wanted(round); ++round) {
    SegmentOptions options = Options();
    options.run_name = "cut";
    options.directory = directory() + "/cut";
    fs::create_directory(options.directory);
    ChildProcess producer([&options] { return ProduceForEver(options); });
    const auto segment = [&options]() -> std::string {
      for (const auto& entry : fs::directory_iterator(options.directory)) {
        if (IsSegmentFileName(entry.path().filename().string())) return entry.path().string();
      }
      return {};
    };
    ASSERT_TRUE(WaitFor([&] { return !segment().empty(); }));
    const std::string path = segment();
    const auto reader = AttachOrFail(path);
    const auto part = static_cast<Part>(round % kParts);
    const SegmentOffsets offsets = ReadHeader(path).offsets;
    const std::uint64_t cut = CutInside(offsets, part);
    const bool grows_again = round % 4 == 3;  // pages of zeros where there were records
    const auto pause = static_cast<useconds_t>(Random(0, 2000));
    SharedObject<std::atomic<bool>> done;
    ChildProcess truncator([&] {
      ::usleep(pause);
      const bool cut_short = ::truncate(path.c_str(), static_cast<off_t>(cut)) == 0;
      if (grows_again) (void)!::truncate(path.c_str(), static_cast<off_t>(offsets.total));
      done->store(true);
      return cut_short ? 0 : 1;
    });
    std::array<std::uint64_t, 2> next_step{};
    while (!done->load()) UseAll(*reader, next_step, grows_again);
    EXPECT_EQ(truncator.Wait(), 0);
    for (int i = 0; i < 4; ++i) UseAll(*reader, next_step, grows_again);
    parts.Hit(part);
    outcomes.Hit(reader->poisoned() ? 0 : 1);
    EXPECT_TRUE(reader->poisoned() || grows_again);
    producer.Kill();  // or it is dead: its own mapping was cut
    UseAll(*reader, next_step, grows_again);
    ASSERT_FALSE(HasFailure()) << "round " << round;
    fs::remove_all(options.directory);
  }
  EXPECT_EQ(DrainAll(*other).size(), 1u);
  EXPECT_FALSE(other->poisoned());
  parts.Report(round);
  outcomes.Report(round);
}

}  // namespace
}  // namespace neuraldbg::testing
