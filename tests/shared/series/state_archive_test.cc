#include "shared/series/state_archive.h"

#include <gtest/gtest.h>

namespace neuraldbg {
namespace {

struct Inner {
  double value = 0;
  std::string text;
  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, value, text);
  }
};
struct Outer {
  bool flag = false;
  std::array<float, 3> row{};
  std::vector<Inner> list;
  std::vector<std::uint32_t> plain;
  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, flag, row, list, plain);
  }
};

Outer Example() { return {true, {1, 2, 3}, {{0.5, "a"}, {1.5, "bc"}}, {7, 8, 9}}; }

TEST(StateArchive, ReadsBackWhatWasWritten) {
  Outer written = Example();
  StateWriter writer;
  Field(writer, written);
  StateReader reader(writer.bytes());
  Outer read;
  Field(reader, read);
  EXPECT_TRUE(reader.ok());
  EXPECT_TRUE(reader.AtEnd());
  EXPECT_TRUE(read.flag);
  EXPECT_EQ(read.row[2], 3);
  ASSERT_EQ(read.list.size(), 2U);
  EXPECT_EQ(read.list[1].text, "bc");
  EXPECT_EQ(read.plain, written.plain);
}

TEST(StateArchive, EveryTruncationFailsWithoutReadingBeyond) {
  Outer written = Example();
  StateWriter writer;
  Field(writer, written);
  for (std::size_t length = 0; length < writer.bytes().size(); ++length) {
    // A heap block of exactly this length, so that a sanitizer sees any read past it.
    const std::vector<std::byte> cut(writer.bytes().begin(),
                                     writer.bytes().begin() + static_cast<std::ptrdiff_t>(length));
    StateReader reader(cut);
    Outer read;
    Field(reader, read);
    EXPECT_FALSE(reader.ok()) << length;
  }
}

TEST(StateArchive, AnImpossibleCountAllocatesNothing) {
  StateWriter writer;
  std::uint64_t huge = UINT64_MAX;
  Field(writer, huge);
  StateReader reader(writer.bytes());
  std::vector<double> values;
  Field(reader, values);
  EXPECT_FALSE(reader.ok());
  EXPECT_TRUE(values.empty());
}

}  // namespace
}  // namespace neuraldbg
