// What the size of a segment follows.
#include "agent/src/segment_sizing.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>

#include "shared/ring_layout.h"
#include "tests/shared/scratch_directory.h"

namespace neuraldbg {
namespace {

SegmentGeometry GeometryOf(const SegmentOptions& options) {
  return {options.lanes, options.lane_capacity, options.sites, options.manifest_bytes, kBlackBoxRecords};
}

TEST(SegmentSizing, UnknownOrSmallLoadsGetTheDefaults) {
  const SegmentOptions defaults;
  for (const ExpectedLoad& load : {ExpectedLoad{}, ExpectedLoad{600, 900}}) {
    const SegmentOptions sized = SizedFor(defaults, load);
    EXPECT_EQ(sized.lane_capacity, defaults.lane_capacity);
    EXPECT_EQ(sized.sites, defaults.sites);
    EXPECT_EQ(sized.manifest_bytes, defaults.manifest_bytes);
  }
}

TEST(SegmentSizing, LanesHoldSixteenSteps) {
  EXPECT_EQ(SizedFor({}, {1024, 0}).lane_capacity, 16384u);
  EXPECT_EQ(SizedFor({}, {1025, 0}).lane_capacity, 32768u);
  EXPECT_EQ(SizedFor({}, {5000, 0}).lane_capacity, 131072u);
}

// Names as a deeply nested module has them.
TEST(SegmentSizing, EverySiteHasItsCounterAndItsEntry) {
  constexpr std::uint32_t kSites = 20000;
  const testing::ScratchDirectory directory;
  SegmentOptions options = SizedFor({}, {0, kSites});
  options.directory = directory.path();
  options.run_name = "sized";
  EXPECT_GE(options.sites, kSites);
  auto created = SegmentWriter::Create(options);
  ASSERT_TRUE(created.ok()) << created.error().message;
  const std::unique_ptr<SegmentWriter> writer = std::move(created).value();
  SiteEntry site;
  site.module = "model.decoder.layers.23.block_sparse_moe.experts.7.self_attention.output_projection";
  site.name = site.module + ":output.grad";
  site.module_kind = "ColumnParallelLinear";
  site.owner = "model.decoder.layers.23.block_sparse_moe.experts.7.self_attention";
  site.shape = {8, 32, 4096, 128};
  for (site.id = 0; site.id < kSites; ++site.id) {
    ASSERT_EQ(writer->manifest().Append(site).code, Errc::kOk) << "site " << site.id;
  }
}

TEST(SegmentSizing, WhatIsAskedForIsNeverLowered) {
  SegmentOptions options;
  options.lane_capacity = 1u << 19;
  EXPECT_EQ(SizedFor(options, {600, 900}).lane_capacity, 1u << 19);
}

TEST(SegmentSizing, AReaderAcceptsTheLargest) {
  constexpr std::uint32_t kHuge = std::numeric_limits<std::uint32_t>::max();
  EXPECT_TRUE(IsAcceptable(GeometryOf(SizedFor({}, {kHuge, kHuge}))));
  EXPECT_TRUE(IsAcceptable(GeometryOf(SizedFor({}, {}))));
}

}  // namespace
}  // namespace neuraldbg
