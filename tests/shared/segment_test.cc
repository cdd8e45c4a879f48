// The segment as a file: how it comes to be and who cleans up. What a reader refuses: hostile_segment_test.cc.
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
  std::size_t FilesInDirectory() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory()), fs::directory_iterator()));
  }
};

TEST_F(SegmentFileTest, PublishesOneFileWithOwnerOnlyAccess) {
  const auto writer = CreateOrFail(Options());
  EXPECT_EQ(FilesInDirectory(), 1u) << "no temporary file remains";
  EXPECT_TRUE(IsSegmentFileName(fs::path(writer->path()).filename().string()));
  struct stat status{};
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
  struct stat status{};
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

TEST_F(SegmentFileTest, TheWriterNoticesThatItsFileIsGone) {
  const auto writer = CreateOrFail(Options());
  EXPECT_FALSE(writer->Unlinked());
  fs::remove(writer->path());
  EXPECT_TRUE(writer->Unlinked());
  EXPECT_EQ(writer->Push(MakeRecord(0, 0)), PushOutcome::kPushed) << "pushes go on harmlessly";
}

TEST_F(SegmentFileTest, UnlinkRemovesThisFileOnly) {
  const std::string path = MakeClosedSegment(Options());
  const auto reader = AttachOrFail(path);
  fs::rename(path, directory() + "/elsewhere");
  std::ofstream(path) << "somebody else's";
  reader->Unlink();
  EXPECT_TRUE(fs::exists(path));
  const std::string second = MakeClosedSegment(Options());
  AttachOrFail(second)->Unlink();
  EXPECT_FALSE(fs::exists(second));
}

TEST_F(SegmentFileTest, ReadersInTheOwnersProcessDoNotCostTheLock) {
  const auto writer = CreateOrFail(Options());
  {
    const auto reader = AttachOrFail(writer->path());
  }
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
  const std::string dead = MakeClosedSegment(Options());
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

// A daemon of another user may read a segment to its end and not remove it from a sticky directory.
TEST_F(SegmentFileTest, ASegmentThatMayNotBeRemovedGivesItsMemoryBack) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  constexpr uid_t kDaemon = 61003;
  SegmentOptions options = Options();
  options.mode = 0660;
  options.group = kDaemon;
  const std::string path = MakeClosedSegment(options);
  ASSERT_EQ(::chmod(directory().c_str(), 01777), 0);
  ChildProcess daemon([&] {
    if (::setgid(kDaemon) != 0 || ::setuid(kDaemon) != 0) return 1;
    const auto reader = SegmentReader::Attach(path);
    if (!reader.ok()) return 2;
    reader.value()->Unlink();
    return 0;
  });
  ASSERT_EQ(daemon.Wait(), 0);
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  EXPECT_GT(status.st_size, 0) << "who still maps it must not meet its end";
  SweepOptions sweep;
  sweep.directory = directory();
  sweep.uid = ::geteuid();
  EXPECT_EQ(SweepSegments(sweep).segments_removed, 1u) << "at once: nothing is in it";
  EXPECT_FALSE(fs::exists(path));
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
