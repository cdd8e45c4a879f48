// What the size of a segment follows.
#include "agent/src/segment_sizing.h"

#include <gtest/gtest.h>

#include <limits>

#include "shared/ring_layout.h"

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

TEST(SegmentSizing, EverySiteHasItsCounterAndItsEntry) {
  const SegmentOptions sized = SizedFor({}, {0, 20000});
  EXPECT_GE(sized.sites, 20000u);
  EXPECT_GE(sized.manifest_bytes, 20000u * 400);
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
