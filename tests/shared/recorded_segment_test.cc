// A segment of every layout stays in tests/data/segments, as the agent of that release left it, and is still read.
//
// Whoever raises the layout's minor adds one: NEURALDBG_RECORD_SEGMENTS=tests/data/segments
// shared_recorded_segment_test. Whoever raises the major moves the files of the old one to what must be refused by
// name.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "tests/shared/segment_fixture.h"

namespace neuraldbg::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPushes = 100;  // into 64 slots: the rest is dropped, and kept in the black box

std::string NameOfLayout() { return std::to_string(kLayoutMajor) + "." + std::to_string(kLayoutMinor) + ".segment"; }

class RecordedSegmentTest : public SegmentTest {
 protected:
  static fs::path Directory() { return fs::path(NEURALDBG_SOURCE_DIR) / "tests" / "data" / "segments"; }

  // What an agent of this layout leaves: a run, two sites, a hundred records, closed in order.
  std::string Record() {
    SegmentOptions options = Options();
    options.lanes = 1;
    options.lane_capacity = 64;
    options.sites = 16;
    options.manifest_bytes = kMinManifestBytes;
    const auto writer = CreateOrFail(options);
    RunEntry run;
    run.run_name = "recorded";
    run.launch = "launch";
    run.framework = "torch 2.13.0";
    EXPECT_EQ(writer->manifest().Append(run).code, Errc::kOk);
    for (std::uint32_t id : {0u, 1u}) {
      SiteEntry site;
      site.id = id;
      site.name = "layer" + std::to_string(id) + ":output";
      site.shape = {8, 32};
      EXPECT_EQ(writer->manifest().Append(site).code, Errc::kOk);
    }
    EXPECT_EQ(writer->manifest().Append(ReadyEntry{3}).code, Errc::kOk);
    for (std::uint64_t step = 0; step < kPushes; ++step) writer->Push(MakeRecord(step % 2 == 0 ? 0 : 1, step));
    writer->Close();
    return writer->path();
  }

  static void ExpectRead(const std::string& path) {
    const auto reader = AttachOrFail(path);
    ASSERT_NE(reader, nullptr);
    EXPECT_EQ(reader->owner_state(), OwnerState::kClosed);
    std::vector<ManifestEntry> entries;
    EXPECT_EQ(reader->manifest().Poll([&](const ManifestEntry& entry) { entries.push_back(entry); }).code, Errc::kOk);
    ASSERT_EQ(entries.size(), 4u);
    EXPECT_EQ(std::get<RunEntry>(entries[0]).run_name, "recorded");
    EXPECT_EQ(std::get<SiteEntry>(entries[2]).name, "layer1:output");
    EXPECT_EQ(std::get<SiteEntry>(entries[2]).shape, (std::vector<std::uint64_t>{8, 32}));
    EXPECT_EQ(std::get<ReadyEntry>(entries[3]).step, 3u);
    const std::vector<neuraldbg::Record> received = DrainAll(*reader);
    ASSERT_EQ(received.size(), 64u);
    for (std::uint64_t step = 0; step < 64; ++step) {
      EXPECT_EQ(received[step].step, step);
      EXPECT_TRUE(IsIntact(received[step]));
    }
    EXPECT_EQ(reader->dropped_total(), kPushes - 64);
    EXPECT_EQ(reader->SiteDropped(0) + reader->SiteDropped(1), kPushes - 64);
    EXPECT_EQ(reader->ReadBlackBox().back().step, kPushes - 1);
  }
};

TEST_F(RecordedSegmentTest, EveryRecordedOneIsRead) {
  if (const char* directory = std::getenv("NEURALDBG_RECORD_SEGMENTS")) {
    fs::copy_file(Record(), fs::path(directory) / NameOfLayout(), fs::copy_options::overwrite_existing);
  }
  std::size_t read = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(Directory())) {
    SCOPED_TRACE(file.path().filename().string());
    // A copy, under a name that a reader takes: draining writes to it.
    const std::string path = Record();
    fs::copy_file(file.path(), path, fs::copy_options::overwrite_existing);
    ExpectRead(path);
    fs::remove(path);
    ++read;
  }
  EXPECT_GT(read, 0u);
}

TEST_F(RecordedSegmentTest, ThisLayoutIsAmongThem) {
  EXPECT_TRUE(fs::exists(Directory() / NameOfLayout()))
      << "set NEURALDBG_RECORD_SEGMENTS to " << Directory() << " and run this test once";
}

}  // namespace
}  // namespace neuraldbg::testing
