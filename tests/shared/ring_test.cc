// Writer and reader of a segment in one process: what goes in comes out, and what does not fit is counted.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "shared/ring_reader.h"
#include "shared/ring_writer.h"
#include "tests/shared/scratch_directory.h"

namespace neuraldbg {
namespace {

class RingTest : public ::testing::Test {
 protected:
  SegmentOptions Options() {
    SegmentOptions options;
    options.directory = directory_.path();
    options.run_name = "ring-test";
    options.lanes = 2;
    options.lane_capacity = 64;
    options.sites = 16;
    options.manifest_bytes = 1u << 16;
    return options;
  }
  std::unique_ptr<SegmentWriter> Create(const SegmentOptions& options) {
    auto writer = SegmentWriter::Create(options);
    EXPECT_TRUE(writer.ok()) << writer.error().message << " errno " << writer.error().system_errno;
    return writer.ok() ? std::move(writer).value() : nullptr;
  }
  std::unique_ptr<SegmentReader> Attach(const std::string& path) {
    auto reader = SegmentReader::Attach(path);
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    return reader.ok() ? std::move(reader).value() : nullptr;
  }
  testing::ScratchDirectory directory_;
};

Record MakeRecord(std::uint32_t site, std::uint64_t step) {
  Record record{};
  record.kind = RecordKind::kTensor;
  record.phase = Phase::kForward;
  record.site = site;
  record.step = step;
  record.tensor.numel = step * 3 + site;
  return record;
}

TEST_F(RingTest, RoundTrip) {
  auto writer = Create(Options());
  ASSERT_NE(writer, nullptr);
  for (std::uint64_t step = 0; step < 10; ++step) {
    ASSERT_EQ(writer->Push(MakeRecord(static_cast<std::uint32_t>(step % 16), step)), PushOutcome::kPushed);
  }
  auto reader = Attach(writer->path());
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->Pending());
  std::vector<Record> received;
  EXPECT_EQ(reader->Drain([&](std::uint32_t, std::span<const Record> records) {
    received.insert(received.end(), records.begin(), records.end());
  }), 10u);
  ASSERT_EQ(received.size(), 10u);
  for (std::uint64_t step = 0; step < 10; ++step) {
    EXPECT_EQ(received[step].step, step);
    EXPECT_EQ(received[step].attempt, step);
    EXPECT_EQ(received[step].tensor.numel, step * 3 + step % 16);
  }
  EXPECT_FALSE(reader->Pending());
  EXPECT_EQ(writer->attempts(), 10u);
  EXPECT_EQ(reader->owner_state(), OwnerState::kAlive);
}

}  // namespace
}  // namespace neuraldbg
