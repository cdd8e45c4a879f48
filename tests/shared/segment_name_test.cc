#include "shared/segment_name.h"

#include <gtest/gtest.h>

namespace neuraldbg::testing {
namespace {

TEST(SegmentNameTest, NamesAreRecognisedAndTellRunsApart) {
  const std::string name = SegmentFileName(1000, "gpt/7 with ../ anything", "launch", 3, 4242, 1);
  EXPECT_TRUE(IsSegmentFileName(name)) << name;
  EXPECT_EQ(name.find('/'), std::string::npos);
  EXPECT_NE(name, SegmentFileName(1000, "gpt/7 with ../ anything", "other", 3, 4242, 1));
  EXPECT_NE(SegmentFileName(0, "ab", "c", 0, 1, 0), SegmentFileName(0, "a", "bc", 0, 1, 0));
  // Fixed for all releases: an older daemon must find the segments of a newer agent.
  EXPECT_EQ(SegmentFileName(1000, "a", "b", 3, 42, 7), "neuraldbg.1000.e5d29919042666b2.r3.42.7");
}

TEST(SegmentNameTest, ForeignNamesAreNotSegments) {
  const std::string good = SegmentFileName(1000, "a", "b", 3, 42, 7);
  EXPECT_FALSE(IsSegmentFileName(good + "x"));
  EXPECT_FALSE(IsSegmentFileName(good + ".1"));
  EXPECT_FALSE(IsSegmentFileName("." + good));
  EXPECT_FALSE(IsSegmentFileName(""));
  EXPECT_FALSE(IsSegmentFileName("neuraldbg."));
  EXPECT_FALSE(IsSegmentFileName("neuraldbg.1000.short.r3.42.7"));
  EXPECT_FALSE(IsSegmentFileName("neuraldbg.1000.e5d29919042666b2.r.42.7"));
  EXPECT_FALSE(IsSegmentFileName("neuraldbg.1000.E5D29919042666B2.r3.42.7"));
  EXPECT_FALSE(IsSegmentFileName(TemporaryFileName(1000, 42, 7)));
  EXPECT_TRUE(TemporaryFileName(1000, 42, 7).starts_with(kTemporaryPrefix));
}

TEST(SegmentNameTest, RunNames) {
  EXPECT_TRUE(IsValidRunName("gpt-7"));
  EXPECT_TRUE(IsValidRunName("A"));
  EXPECT_TRUE(IsValidRunName("9._-x"));
  EXPECT_TRUE(IsValidRunName(std::string(100, 'a')));
  EXPECT_FALSE(IsValidRunName(std::string(101, 'a')));
  for (const char* bad : {"", "-a", ".a", "_a", "a b", "a/b", "a\n", "ä", "a#2"})
    EXPECT_FALSE(IsValidRunName(bad)) << bad;
}

}  // namespace
}  // namespace neuraldbg::testing
