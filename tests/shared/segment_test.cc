// The segment as a file: how it comes to be, what a reader refuses, and who cleans up.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <utime.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "shared/ring_layout.h"
#include "shared/segment_name.h"
#include "shared/segment_sweep.h"
#include "tests/shared/child_process.h"
#include "tests/shared/segment_fixture.h"

namespace neuraldbg::testing {
namespace {

namespace fs = std::filesystem;

class SegmentFileTest : public SegmentTest {
 protected:
  // A closed, valid segment that no process owns any more.
  std::string MakeClosedSegment() {
    const auto writer = CreateOrFail(Options());
    writer->Push(MakeRecord(1, 1));
    return writer->path();
  }
  std::size_t FilesInDirectory() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory()), fs::directory_iterator()));
  }
};

SegmentHeader ReadHeader(const std::string& path) {
  SegmentHeader header{};
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
  return header;
}

void WriteHeader(const std::string& path, SegmentHeader header, bool fix_checksum) {
  if (fix_checksum) header.crc = HeaderChecksum(header);
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out)
      .write(reinterpret_cast<const char*>(&header), sizeof header);
}

Errc AttachError(const std::string& path, std::optional<std::uint32_t> uid = {}) {
  const auto reader = SegmentReader::Attach(path, uid);
  return reader.ok() ? Errc::kOk : reader.error().code;
}

TEST_F(SegmentFileTest, PublishesOneFileWithOwnerOnlyAccess) {
  const auto writer = CreateOrFail(Options());
  EXPECT_EQ(FilesInDirectory(), 1u) << "no temporary file remains";
  EXPECT_TRUE(IsSegmentFileName(fs::path(writer->path()).filename().string()));
  struct stat status {};
  ASSERT_EQ(::stat(writer->path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 0600u);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), ReadHeader(writer->path()).offsets.total);
  EXPECT_GE(static_cast<std::uint64_t>(status.st_blocks) * 512, static_cast<std::uint64_t>(status.st_size))
      << "all memory is reserved up front";
}

TEST_F(SegmentFileTest, TheUmaskDoesNotDecideTheMode) {
  SegmentOptions options = Options();
  options.mode = 0660;
  const mode_t before = ::umask(0077);
  const auto writer = CreateOrFail(options);
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(writer->path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 0660u);
}

TEST_F(SegmentFileTest, ReaderLearnsTheIdentity) {
  SegmentOptions options = Options();
  options.rank = 5;
  options.world_size = 8;
  options.incarnation = 2;
  const auto writer = CreateOrFail(options);
  const auto reader = AttachOrFail(writer->path());
  const SegmentIdentity& identity = reader->identity();
  EXPECT_EQ(identity.path, writer->path());
  EXPECT_EQ(identity.owner_uid, ::geteuid());
  EXPECT_EQ(identity.pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(identity.rank, 5u);
  EXPECT_EQ(identity.world_size, 8u);
  EXPECT_EQ(identity.incarnation, 2u);
  EXPECT_EQ(identity.lanes, 2u);
  EXPECT_EQ(identity.lane_capacity, 64u);
  EXPECT_EQ(identity.sites, 16u);
  EXPECT_EQ(identity.major, kLayoutMajor);
  EXPECT_EQ(std::memcmp(identity.uuid.data(), writer->uuid(), 16), 0);
  const auto other = CreateOrFail(options);
  EXPECT_NE(std::memcmp(other->uuid(), writer->uuid(), 16), 0);
}

TEST_F(SegmentFileTest, TheManifestTravelsInTheSegment) {
  const auto writer = CreateOrFail(Options());
  ASSERT_EQ(writer->manifest().Append(MarkEntry{3, "hello"}).code, Errc::kOk);
  const std::string path = writer->path();
  const auto reader = AttachOrFail(path);
  std::vector<std::string> texts;
  const auto collect = [&texts](const ManifestEntry& entry) { texts.push_back(std::get<MarkEntry>(entry).text); };
  EXPECT_EQ(reader->manifest().Poll(collect).code, Errc::kOk);
  ASSERT_EQ(writer->manifest().Append(MarkEntry{4, "again"}).code, Errc::kOk);
  EXPECT_EQ(reader->manifest().Poll(collect).code, Errc::kOk);
  EXPECT_EQ(texts, (std::vector<std::string>{"hello", "again"}));
}

TEST_F(SegmentFileTest, UnusableOptionsAreRefused) {
  const auto error = [](const SegmentOptions& options) {
    const auto writer = SegmentWriter::Create(options);
    return writer.ok() ? Errc::kOk : writer.error().code;
  };
  SegmentOptions options = Options();
  options.lanes = 0;
  EXPECT_EQ(error(options), Errc::kInvalidArgument);
  options = Options();
  options.lanes = kMaxLanes + 1;
  EXPECT_EQ(error(options), Errc::kInvalidArgument);
  options = Options();
  options.lane_capacity = 100;
  EXPECT_EQ(error(options), Errc::kInvalidArgument);
  options = Options();
  options.lane_capacity_min = 128;
  EXPECT_EQ(error(options), Errc::kInvalidArgument);
  options = Options();
  options.manifest_bytes = 16;
  EXPECT_EQ(error(options), Errc::kInvalidArgument);
  options = Options();
  options.mode = 0666;
  EXPECT_EQ(error(options), Errc::kInvalidArgument) << "a segment that everybody may truncate";
  options = Options();
  options.directory += "/missing";
  EXPECT_EQ(error(options), Errc::kNotFound);
}

TEST_F(SegmentFileTest, ReaderRefusesWhatItDoesNotUnderstand) {
  const std::string path = MakeClosedSegment();
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

  WriteHeader(path, good, false);
  EXPECT_EQ(AttachError(path), Errc::kOk);
}

TEST_F(SegmentFileTest, ReaderRefusesEveryGeometryThatTheFileDoesNotHave) {
  const std::string path = MakeClosedSegment();
  const SegmentHeader good = ReadHeader(path);
  const std::uint32_t values[] = {0, 1, 3, 128, 1u << 20, 1u << 31, 0xffffffffu};
  for (std::uint32_t SegmentGeometry::*field :
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

TEST_F(SegmentFileTest, ReaderRefusesFilesOfTheWrongSort) {
  const std::string path = MakeClosedSegment();
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

TEST_F(SegmentFileTest, ReaderRefusesAFileOfAnotherSize) {
  const std::string path = MakeClosedSegment();
  const std::uintmax_t bytes = fs::file_size(path);
  fs::resize_file(path, bytes + 4096);
  EXPECT_EQ(AttachError(path), Errc::kBadLayout);
  fs::resize_file(path, bytes - 4096);
  EXPECT_EQ(AttachError(path), Errc::kBadLayout);
}

TEST_F(SegmentFileTest, CorruptSlotsAreSkippedAndCounted) {
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

TEST_F(SegmentFileTest, AnImpossibleTailIsSkippedThenQuarantined) {
  const std::string path = MakeClosedSegment();
  const SegmentHeader header = ReadHeader(path);
  const auto reader = AttachOrFail(path);
  ASSERT_EQ(DrainAll(*reader).size(), 1u);
  for (std::uint64_t round = 1; round <= 9; ++round) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(header.offsets.producer + sizeof(ProducerState) +
                                           offsetof(ProducerLane, tail)));
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

TEST_F(SegmentFileTest, ACorruptHeadNeverLetsTheWriterOverwrite) {
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

TEST_F(SegmentFileTest, TruncationUnderTheMappingPoisonsTheReaderAlone) {
  const std::string path = MakeClosedSegment();
  const auto reader = AttachOrFail(path);
  const auto other_path = MakeClosedSegment();
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

TEST_F(SegmentFileTest, TruncationOfTheRecordsAloneIsNoticed) {
  const std::string path = MakeClosedSegment();
  const auto reader = AttachOrFail(path);
  fs::resize_file(path, ReadHeader(path).offsets.records);
  EXPECT_TRUE(reader->Pending());
  EXPECT_EQ(DrainAll(*reader).size(), 0u);
  EXPECT_TRUE(reader->poisoned());
}

TEST_F(SegmentFileTest, FaultsOutsideSegmentsStillKill) {
  const std::string path = MakeClosedSegment();
  const std::string foreign = directory() + "/foreign";
  std::ofstream(foreign) << "x";
  ChildProcess child([&] {
    const auto reader = SegmentReader::Attach(path);
    const int fd = ::open(foreign.c_str(), O_RDWR);
    const auto* memory =
        static_cast<volatile char*>(::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0));
    return static_cast<int>(memory[4096]);
  });
  // A sanitizer's own handler was there before, and ends the process in its own way.
  EXPECT_NE(child.Wait(), 0);
}

TEST_F(SegmentFileTest, TheWriterNoticesThatItsFileIsGone) {
  const auto writer = CreateOrFail(Options());
  EXPECT_FALSE(writer->Unlinked());
  fs::remove(writer->path());
  EXPECT_TRUE(writer->Unlinked());
  EXPECT_EQ(writer->Push(MakeRecord(0, 0)), PushOutcome::kPushed) << "pushes go on harmlessly";
}

TEST_F(SegmentFileTest, UnlinkRemovesThisFileOnly) {
  const std::string path = MakeClosedSegment();
  const auto reader = AttachOrFail(path);
  fs::rename(path, directory() + "/elsewhere");
  std::ofstream(path) << "somebody else's";
  reader->Unlink();
  EXPECT_TRUE(fs::exists(path));
  const std::string second = MakeClosedSegment();
  AttachOrFail(second)->Unlink();
  EXPECT_FALSE(fs::exists(second));
}

TEST_F(SegmentFileTest, ReadersInTheOwnersProcessDoNotCostTheLock) {
  const auto writer = CreateOrFail(Options());
  { const auto reader = AttachOrFail(writer->path()); }
  SweepOptions sweep;
  sweep.directory = directory();
  sweep.uid = ::geteuid();
  sweep.segment_ttl = std::chrono::seconds(-1);
  EXPECT_EQ(SweepSegments(sweep).segments_removed, 0u);
  ChildProcess child([path = writer->path()] {
    const auto reader = SegmentReader::Attach(path);
    return reader.ok() && reader.value()->owner_state() == OwnerState::kAlive ? 0 : 1;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(SegmentFileTest, SweepRemovesOldLeftoversOnly) {
  const std::string dead = MakeClosedSegment();
  const auto living = CreateOrFail(Options());
  const std::string foreign = directory() + "/something.else";
  std::ofstream(foreign) << "x";
  const std::string old_temporary = directory() + "/" + TemporaryFileName(::geteuid(), 1, 1);
  const std::string new_temporary = directory() + "/" + TemporaryFileName(::geteuid(), 1, 2);
  std::ofstream(old_temporary) << "x";
  std::ofstream(new_temporary) << "x";
  const utimbuf times{::time(nullptr) - 60, ::time(nullptr) - 60};
  ASSERT_EQ(::utime(old_temporary.c_str(), &times), 0);

  SweepOptions options;
  options.directory = directory();
  options.uid = ::geteuid();
  SweepResult result = SweepSegments(options);
  EXPECT_EQ(result.temporary_removed, 1u);
  EXPECT_EQ(result.segments_removed, 0u) << "a dead segment is evidence until its time is over";
  EXPECT_FALSE(fs::exists(old_temporary));
  EXPECT_TRUE(fs::exists(new_temporary));

  options.segment_ttl = std::chrono::seconds(-1);
  options.uid = ::geteuid() + 1;
  EXPECT_EQ(SweepSegments(options).segments_removed, 0u) << "another user's";
  options.uid = ::geteuid();
  result = SweepSegments(options);
  EXPECT_EQ(result.segments_removed, 1u);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(living->path()));
  EXPECT_TRUE(fs::exists(foreign));
}

// A tmpfs of a given size, as a container has it. Needs root.
class SmallTmpfs {
 public:
  explicit SmallTmpfs(std::string path) : path_(std::move(path)) {
    fs::create_directory(path_);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=1m") == 0;
  }
  ~SmallTmpfs() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallTmpfs(const SmallTmpfs&) = delete;
  SmallTmpfs& operator=(const SmallTmpfs&) = delete;
  const std::string& path() const { return path_; }
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

TEST_F(SegmentFileTest, AFullDirectoryShrinksTheLanesThenRefuses) {
  const SmallTmpfs small(directory() + "/small");
  if (!small.mounted()) GTEST_SKIP() << "mounting a small tmpfs is not permitted here";
  SegmentOptions options = Options();
  options.directory = small.path();
  options.lane_capacity = 16384;
  std::vector<std::unique_ptr<SegmentWriter>> writers;
  for (;;) {
    Result<std::unique_ptr<SegmentWriter>> writer = SegmentWriter::Create(options);
    if (!writer.ok()) {
      EXPECT_EQ(writer.error().code, Errc::kNoSpace);
      break;
    }
    writers.push_back(std::move(writer).value());
    ASSERT_LT(writers.size(), 20u);
  }
  ASSERT_GE(writers.size(), 2u);
  EXPECT_EQ(writers.front()->lane_capacity(), 2048u) << "4 MiB of records, halved until they fit in 1 MiB";
  EXPECT_LT(writers.back()->lane_capacity(), writers.front()->lane_capacity());
  EXPECT_EQ(static_cast<std::size_t>(std::distance(fs::directory_iterator(small.path()), fs::directory_iterator())),
            writers.size())
      << "a failed creation leaves nothing behind";
  for (const auto& writer : writers) {
    std::uint64_t pushed = 0;
    while (writer->Push(MakeRecord(0, pushed)) == PushOutcome::kPushed) ++pushed;
    EXPECT_EQ(pushed, writer->lane_capacity());
  }
}

}  // namespace
}  // namespace neuraldbg::testing
