// A reader believes no byte of a segment: whatever a file or a live writer holds, it refuses, skips or gives up.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/shared/child_process.h"
#include "tests/shared/segment_fixture.h"

namespace neuraldbg::testing {
namespace {

namespace fs = std::filesystem;

using HostileSegmentTest = SegmentTest;

void WriteHeader(const std::string& path, SegmentHeader header, bool fix_checksum) {
  if (fix_checksum) header.crc = HeaderChecksum(header);
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out)
      .write(reinterpret_cast<const char*>(&header), sizeof header);
}

Errc AttachError(const std::string& path, std::optional<std::uint32_t> uid = {}) {
  const auto reader = SegmentReader::Attach(path, {.uid = uid, .gid = {}});
  return reader.ok() ? Errc::kOk : reader.error().code;
}

TEST_F(HostileSegmentTest, ReaderRefusesWhatItDoesNotUnderstand) {
  const std::string path = MakeClosedSegment(Options());
  const SegmentHeader good = ReadHeader(path);
  ASSERT_EQ(AttachError(path), Errc::kOk);

  SegmentHeader header = good;
  header.magic[0] = 'X';
  WriteHeader(path, header, true);
  EXPECT_EQ(AttachError(path), Errc::kBadMagic);

  header = good;
  header.major = kLayoutMajor + 1;
  WriteHeader(path, header, true);
  EXPECT_EQ(AttachError(path), Errc::kBadVersion);

  header = good;
  header.minor = kLayoutMinor + 1;
  WriteHeader(path, header, true);
  EXPECT_EQ(AttachError(path), Errc::kOk) << "a later minor version only adds";

  header = good;
  header.layout_hash ^= 1;
  WriteHeader(path, header, true);
  EXPECT_EQ(AttachError(path), Errc::kBadLayout);

  header = good;
  header.rank ^= 1;
  WriteHeader(path, header, false);
  EXPECT_EQ(AttachError(path), Errc::kBadLayout) << "checksum";

  header = good;
  header.record_bytes = 64;
  WriteHeader(path, header, true);
  EXPECT_EQ(AttachError(path), Errc::kBadLayout);

  header = good;
  header.offsets.records -= 4096;
  WriteHeader(path, header, true);
  EXPECT_EQ(AttachError(path), Errc::kBadLayout) << "offsets that do not follow from the geometry";

  WriteHeader(path, good, false);
  EXPECT_EQ(AttachError(path), Errc::kOk);
}

TEST_F(HostileSegmentTest, ReaderRefusesEveryGeometryThatTheFileDoesNotHave) {
  const std::string path = MakeClosedSegment(Options());
  const SegmentHeader good = ReadHeader(path);
  const std::uint32_t values[] = {0, 1, 3, 128, 1u << 20, 1u << 31, 0xffffffffu};
  for (std::uint32_t SegmentGeometry::* field :
       {&SegmentGeometry::lanes, &SegmentGeometry::lane_capacity, &SegmentGeometry::sites,
        &SegmentGeometry::manifest_bytes, &SegmentGeometry::black_box_records}) {
    for (const std::uint32_t value : values) {
      SegmentHeader header = good;
      header.geometry.*field = value;
      // Where rounding to pages hides the change, the claim is true of the file as well.
      if (IsAcceptable(header.geometry) && ComputeOffsets(header.geometry) == good.offsets) continue;
      WriteHeader(path, header, true);
      EXPECT_EQ(AttachError(path), Errc::kBadLayout) << value;
      // The same with offsets that follow from the claimed geometry.
      header.offsets = ComputeOffsets(header.geometry);
      WriteHeader(path, header, true);
      EXPECT_EQ(AttachError(path), Errc::kBadLayout) << value;
    }
  }
}

TEST_F(HostileSegmentTest, ReaderRefusesFilesOfTheWrongSort) {
  const std::string path = MakeClosedSegment(Options());
  const std::string link = directory() + "/link";
  fs::create_symlink(path, link);
  EXPECT_EQ(AttachError(link), Errc::kBadOwner);
  EXPECT_EQ(AttachError(directory()), Errc::kIo) << "a directory cannot be opened for writing";
  EXPECT_EQ(AttachError(directory() + "/missing"), Errc::kNotFound);
  ASSERT_EQ(::mkfifo((directory() + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(AttachError(directory() + "/fifo"), Errc::kBadOwner) << "and must not block";
  EXPECT_EQ(AttachError(path, ::geteuid() + 1), Errc::kBadOwner);
  EXPECT_EQ(AttachError(path, ::geteuid()), Errc::kOk);
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  EXPECT_EQ(AttachError(path), Errc::kBadOwner);
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  for (const std::uintmax_t bytes : {std::uintmax_t{0}, std::uintmax_t{100}}) {
    fs::resize_file(path, bytes);
    EXPECT_EQ(AttachError(path), Errc::kBadMagic);
  }
}

TEST_F(HostileSegmentTest, ReaderRefusesAFileOfAnotherSize) {
  const std::string path = MakeClosedSegment(Options());
  const std::uintmax_t bytes = fs::file_size(path);
  fs::resize_file(path, bytes + 4096);
  EXPECT_EQ(AttachError(path), Errc::kBadLayout);
  fs::resize_file(path, bytes - 4096);
  EXPECT_EQ(AttachError(path), Errc::kBadLayout);
}

TEST_F(HostileSegmentTest, CorruptSlotsAreSkippedAndCounted) {
  const auto writer = CreateOrFail(Options());
  for (std::uint64_t step = 0; step < 10; ++step) writer->Push(MakeRecord(2, step));
  const SegmentHeader header = ReadHeader(writer->path());
  const auto poke = [&](std::size_t slot, std::size_t offset, std::uint8_t value) {
    std::fstream file(writer->path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(header.offsets.records + slot * kRecordBytes + offset));
    file.put(static_cast<char>(value));
  };
  // Opening the file in the owner's process costs the lock, but this test does not ask for the owner.
  poke(1, offsetof(Record, kind), 0);
  poke(2, offsetof(Record, kind), kRecordKindCount);
  poke(3, offsetof(Record, phase), kPhaseCount);
  poke(4, offsetof(Record, dtype), 200);
  poke(5, offsetof(Record, site) + 2, 1);
  poke(6, offsetof(Record, tag), 0xaa);
  poke(7, offsetof(Record, attempt), 3);
  const auto reader = AttachOrFail(writer->path());
  std::vector<std::uint64_t> steps;
  for (const Record& record : DrainAll(*reader)) steps.push_back(record.step);
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{0, 8, 9}));
  EXPECT_EQ(reader->counters()[0].invalid, 7u);
  EXPECT_EQ(reader->counters()[0].consumed, 3u);
}

TEST_F(HostileSegmentTest, AnImpossibleTailIsSkippedThenQuarantined) {
  const std::string path = MakeClosedSegment(Options());
  const SegmentHeader header = ReadHeader(path);
  const auto reader = AttachOrFail(path);
  ASSERT_EQ(DrainAll(*reader).size(), 1u);
  for (std::uint64_t round = 1; round <= 9; ++round) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(
        static_cast<std::streamoff>(header.offsets.producer + sizeof(ProducerState) + offsetof(ProducerLane, tail)));
    const std::uint64_t tail = round * 1'000'000;
    file.write(reinterpret_cast<const char*>(&tail), sizeof tail);
    file.close();
    EXPECT_TRUE(reader->Pending());
    EXPECT_EQ(DrainAll(*reader).size(), 0u);
    EXPECT_EQ(reader->counters()[0].resyncs, round);
    EXPECT_EQ(reader->counters()[0].quarantined, round == 9);
  }
  EXPECT_FALSE(reader->Pending());
}

TEST_F(HostileSegmentTest, ACorruptHeadNeverLetsTheWriterOverwrite) {
  const auto writer = CreateOrFail(Options());
  const auto reader = AttachOrFail(writer->path());
  for (std::uint64_t step = 0; step < 64; ++step) ASSERT_EQ(writer->Push(MakeRecord(0, step)), PushOutcome::kPushed);
  const SegmentHeader header = ReadHeader(writer->path());
  const std::uint64_t head = 1'000'000;  // ahead of the tail
  std::fstream file(writer->path(), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(header.offsets.consumer + sizeof(ConsumerState)));
  file.write(reinterpret_cast<const char*>(&head), sizeof head);
  file.close();
  EXPECT_EQ(writer->Push(MakeRecord(0, 64)), PushOutcome::kDropped);
  std::uint64_t next = 0;
  for (const Record& record : DrainAll(*reader)) EXPECT_EQ(record.step, next++);
  EXPECT_EQ(next, 64u);
}

TEST_F(HostileSegmentTest, TruncationUnderTheMappingPoisonsTheReaderAlone) {
  const std::string path = MakeClosedSegment(Options());
  const auto reader = AttachOrFail(path);
  const auto other_path = MakeClosedSegment(Options());
  const auto other = AttachOrFail(other_path);
  fs::resize_file(path, 0);
  EXPECT_EQ(DrainAll(*reader).size(), 0u);
  EXPECT_TRUE(reader->poisoned());
  EXPECT_FALSE(reader->Pending());
  reader->Release();
  EXPECT_NE(reader->manifest().Poll([](const ManifestEntry&) { ADD_FAILURE(); }).code, Errc::kFull);
  reader->counters();
  reader->SiteDropped(3);
  EXPECT_EQ(DrainAll(*other).size(), 1u);
  EXPECT_FALSE(other->poisoned());
}

TEST_F(HostileSegmentTest, TruncationOfTheRecordsAloneIsNoticed) {
  const std::string path = MakeClosedSegment(Options());
  const auto reader = AttachOrFail(path);
  fs::resize_file(path, ReadHeader(path).offsets.records);
  EXPECT_TRUE(reader->Pending());
  EXPECT_EQ(DrainAll(*reader).size(), 0u);
  EXPECT_TRUE(reader->poisoned());
}

TEST_F(HostileSegmentTest, FaultsOutsideSegmentsStillKill) {
  const std::string path = MakeClosedSegment(Options());
  const std::string foreign = directory() + "/foreign";
  std::ofstream(foreign) << "x";
  ChildProcess child([&] {
    const auto reader = SegmentReader::Attach(path);
    const int fd = ::open(foreign.c_str(), O_RDWR);
    const auto* memory = static_cast<volatile char*>(::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0));
    return static_cast<int>(memory[4096]);
  });
  // A sanitizer's own handler was there before, and ends the process in its own way.
  EXPECT_NE(child.Wait(), 0);
}

}  // namespace
}  // namespace neuraldbg::testing
