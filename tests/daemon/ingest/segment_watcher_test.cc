// SegmentWatcher over a real directory: real segments among garbage, foreign files and files of another daemon.
#include "daemon/ingest/segment_watcher.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "shared/ring_writer.h"
#include "shared/segment_name.h"

namespace neuraldbg {
namespace {

class SegmentWatcherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "watcher.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<SegmentWriter> NewSegment(std::uint32_t rank) {
    SegmentOptions options;
    options.directory = directory_;
    options.run_name = "watched";
    options.rank = rank;
    options.lanes = 1;
    options.lane_capacity = 64;
    options.sites = 8;
    options.manifest_bytes = 4096;
    auto writer = SegmentWriter::Create(options);
    EXPECT_TRUE(writer.ok()) << writer.error().message;
    return std::move(writer).value();
  }
  void WriteFile(const std::string& name, const std::string& content) {
    std::ofstream(directory_ + "/" + name) << content;
  }
  SegmentWatcher Watcher(std::optional<std::uint32_t> uid = ::getuid()) {
    return SegmentWatcher({.directory = directory_, .access = {.uid = uid, .gid = {}}});
  }

  std::string directory_;
};

TEST_F(SegmentWatcherTest, Look_AdoptsEachSegmentOnceInOrderOfCreation) {
  SegmentWatcher watcher = Watcher();
  const auto first = NewSegment(1);
  const auto second = NewSegment(0);
  auto scan = watcher.Look({});
  ASSERT_EQ(scan.adopted.size(), 2u);
  EXPECT_EQ(scan.adopted[0].reader->identity().rank, 1u);
  EXPECT_EQ(scan.adopted[1].reader->identity().rank, 0u);
  EXPECT_TRUE(watcher.Look({}).adopted.empty());
}

TEST_F(SegmentWatcherTest, Garbage_IsTurnedAwayOnceWithItsReason) {
  SegmentWatcher watcher = Watcher();
  WriteFile("unrelated", "x");
  const std::string name = SegmentFileName(::getuid(), "garbage", "l", 0, 1, 0);
  WriteFile(name, std::string(100'000, 'g'));
  WriteFile(SegmentFileName(::getuid(), "empty", "l", 0, 1, 0), "");
  std::filesystem::create_symlink(name, directory_ + "/" + SegmentFileName(::getuid(), "link", "l", 0, 1, 0));
  ASSERT_EQ(::mkfifo((directory_ + "/" + SegmentFileName(::getuid(), "pipe", "l", 0, 1, 0)).c_str(), 0600), 0);
  const auto writer = NewSegment(0);
  const auto scan = watcher.Look({});
  EXPECT_EQ(scan.adopted.size(), 1u);
  ASSERT_EQ(scan.refused.size(), 4u);
  for (const RefusedSegment& refused : scan.refused) {
    EXPECT_FALSE(refused.reason.empty()) << refused.path;
    EXPECT_FALSE(refused.other_user) << refused.path;
  }
  EXPECT_TRUE(watcher.Look({}).refused.empty());
}

TEST_F(SegmentWatcherTest, SegmentOfAnotherUser_IsLeftAlone) {
  SegmentWatcher watcher = Watcher(::getuid() + 1);
  const auto writer = NewSegment(0);
  const auto scan = watcher.Look({});
  EXPECT_TRUE(scan.adopted.empty());
  ASSERT_EQ(scan.refused.size(), 1u);
  EXPECT_NE(scan.refused[0].reason.find("another user"), std::string::npos);
  EXPECT_TRUE(scan.refused[0].other_user);
}

TEST_F(SegmentWatcherTest, SegmentOfAnotherUserInTheConfiguredGroup_IsRead) {
  const WatcherOptions options{.directory = directory_, .access = {.uid = ::getuid() + 1, .gid = ::getgid()}};
  const auto closed = NewSegment(0), open = NewSegment(1);
  ASSERT_EQ(::chmod(open->path().c_str(), 0660), 0);
  const auto scan = SegmentWatcher(options).Look({});
  ASSERT_EQ(scan.adopted.size(), 1u) << "0600 is its owner's alone, whatever its group";
  EXPECT_EQ(scan.adopted[0].reader->identity().rank, 1u);

  WatcherOptions other_group = options;
  other_group.access.gid = ::getgid() + 1;
  EXPECT_EQ(SegmentWatcher(other_group).Look({}).refused.size(), 2u);
}

// What a daemon leaves that may read a segment and not remove it.
TEST_F(SegmentWatcherTest, EmptiedSegment_IsPassedOverInSilence) {
  const std::string path = NewSegment(0)->path();
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  ASSERT_EQ(::truncate(path.c_str(), 65536), 0);
  SegmentWatcher watcher = Watcher();
  const auto scan = watcher.Look({});
  EXPECT_TRUE(scan.adopted.empty());
  EXPECT_TRUE(scan.refused.empty());
}

TEST_F(SegmentWatcherTest, SegmentOfAnotherDaemon_IsTakenOverWhenItGoes) {
  SegmentWatcher mine = Watcher(), other = Watcher();
  const auto writer = NewSegment(0);
  {
    const auto taken = other.Look({});
    ASSERT_EQ(taken.adopted.size(), 1u);
    const auto scan = mine.Look({});
    EXPECT_TRUE(scan.adopted.empty());
    EXPECT_TRUE(scan.refused.empty());
  }
  EXPECT_EQ(mine.Look({}).adopted.size(), 1u);
}

TEST_F(SegmentWatcherTest, RetiredSegment_IsNotAdoptedAgain) {
  SegmentWatcher watcher = Watcher();
  const auto writer = NewSegment(0);
  auto scan = watcher.Look({});
  ASSERT_EQ(scan.adopted.size(), 1u);
  scan.adopted.clear();
  watcher.Retire(writer->path());
  scan = watcher.Look({});
  EXPECT_TRUE(scan.adopted.empty());
  EXPECT_TRUE(scan.refused.empty());
}

TEST_F(SegmentWatcherTest, DirectoryChanged_NoticesANewSegment) {
  SegmentWatcher watcher = Watcher();
  EXPECT_TRUE(watcher.DirectoryChanged(false));
  EXPECT_FALSE(watcher.DirectoryChanged(false));
  EXPECT_TRUE(watcher.DirectoryChanged(true));
  ::usleep(20'000);  // directory times move with the kernel's tick
  const auto writer = NewSegment(0);
  EXPECT_TRUE(watcher.DirectoryChanged(false));
}

TEST_F(SegmentWatcherTest, MissingDirectory_IsSaid) {
  SegmentWatcher watcher({.directory = directory_ + "/none", .access = {}});
  EXPECT_TRUE(watcher.DirectoryChanged(false));
  EXPECT_FALSE(watcher.Look({}).directory_error.empty());
}

}  // namespace
}  // namespace neuraldbg
