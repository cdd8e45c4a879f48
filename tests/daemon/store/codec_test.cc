// The store's own formats: exact both ways, and harmless when damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "daemon/store/block_codec.h"
#include "daemon/store/frame_codec.h"
#include "daemon/store/rollup.h"
#include "daemon/store/word_codec.h"
#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg::store {
namespace {

TEST(WordCodecTest, EveryBitPatternSurvives) {
  std::mt19937_64 random(1);
  for (const std::size_t count : {0u, 1u, 2u, 63u, 64u, 5000u}) {
    for (const std::uint32_t mask : {0u, 0xffu, 0xff0000u, 0xffffffffu}) {
      std::vector<std::uint32_t> words(count);
      std::generate(words.begin(), words.end(), [&] { return static_cast<std::uint32_t>(random()) & mask; });
      Bytes bytes;
      EncodeWords(words, bytes);
      std::vector<std::uint32_t> back;
      ByteReader reader(bytes);
      ASSERT_TRUE(DecodeWords(reader, count, back));
      EXPECT_TRUE(reader.Finished());
      EXPECT_EQ(words, back);
    }
  }
}

TEST(FrameCodecTest, ExtremeFieldsSurvive) {
  StepFrame frame;
  frame.rank = {1, 2, 3};
  frame.step = UINT64_MAX;
  frame.complete = frame.applied = true;
  frame.training = false;
  frame.records_received = UINT64_MAX;
  frame.records_missing = UINT64_MAX - 1;
  frame.time_ns = UINT64_MAX;
  Sample sample;
  sample.site = kNoSite;
  sample.kind = RecordKind::kRouter;
  sample.phase = Phase::kSystem;
  sample.flags = 0xffff;
  sample.present = 0xffffffffu;
  sample.has_bits = true;
  sample.bits = UINT64_MAX;
  sample.value.fill(-0.0f);
  frame.samples = {sample, Sample{}};
  Bytes bytes;
  EncodeFrame(frame, bytes);
  const auto back = DecodeFrame(bytes, frame.rank);
  ASSERT_TRUE(back.has_value());
  EXPECT_TRUE(SameFrame(frame, *back));
}

// Cut at every length and with bytes changed: decoding must end without touching foreign memory (ASan build), and what
// it accepts must be sound enough to encode again.
template <typename Decode>
void ExpectHarmless(const Bytes& bytes, const Decode& decode) {
  std::mt19937_64 random(2);
  const std::size_t stride = std::max<std::size_t>(1, bytes.size() / 100);
  for (std::size_t size = 0; size < bytes.size(); size += stride) {
    EXPECT_FALSE(decode(ByteSpan(bytes).first(size))) << "accepted " << size << " of " << bytes.size() << " bytes";
  }
  for (int i = 0; i < 300; ++i) {
    Bytes damaged = bytes;
    for (std::uint64_t change = 0; change <= random() % 4; ++change) {
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    }
    decode(damaged);
  }
}

TEST(FrameCodecTest, DamageIsHarmless) {
  FrameSource source(3, 12);
  Bytes bytes;
  EncodeFrame(source.Next({1, 0, 0}, 7), bytes);
  ExpectHarmless(bytes, [](ByteSpan span) { return DecodeFrame(span, {}).has_value(); });
}

struct Encoded {
  std::vector<StepFrame> frames;
  EncodedBlock block;
};

Encoded EncodeSome(std::size_t count, std::uint32_t sites, bool unsorted) {
  FrameSource source(count + sites, sites);
  Encoded encoded;
  std::vector<std::uint64_t> sequences;
  for (std::size_t i = 0; i < count; ++i) {
    encoded.frames.push_back(source.Next({4, 5, 6}, 1000 + 3 * i));
    sequences.push_back(17 * i + 2);
    if (unsorted && i % 3 == 0 && encoded.frames.back().samples.size() > 1) {
      std::swap(encoded.frames.back().samples.front(), encoded.frames.back().samples.back());
      encoded.frames.back().samples.push_back(encoded.frames.back().samples.front());
    }
  }
  encoded.block = EncodeBlock(encoded.frames, sequences);
  return encoded;
}

std::optional<std::vector<StepFrame>> DecodeAll(ByteSpan directory_bytes, const EncodedBlock& block) {
  auto directory = DecodeDirectory(directory_bytes, {4, 5, 6});
  if (!directory) {
    return std::nullopt;
  }
  const auto section = [&](RecordKind kind, std::size_t statistic) {
    for (const Pack& pack : block.packs) {
      if (pack.kind == kind && pack.first_statistic <= statistic && statistic <= pack.last_statistic) {
        return FindInPack(pack.data, pack.first_statistic, statistic);
      }
    }
    return ByteSpan();
  };
  if (!DecodeSamples(*directory, section, block.fingerprints)) {
    return std::nullopt;
  }
  return std::move(directory->frames);
}

TEST(BlockCodecTest, FramesComeBackBitForBit) {
  for (const bool unsorted : {false, true}) {
    for (const std::size_t count : {1u, 16u, 64u}) {
      for (const std::uint32_t sites : {0u, 1u, 20u}) {
        const Encoded encoded = EncodeSome(count, sites, unsorted);
        const auto back = DecodeAll(encoded.block.directory, encoded.block);
        ASSERT_TRUE(back.has_value());
        EXPECT_TRUE(SameFrames(encoded.frames, *back)) << count << " frames, " << sites << " sites";
        EXPECT_EQ(DecodeDirectory(encoded.block.directory, {})->sequences[count - 1], 17 * (count - 1) + 2);
      }
    }
  }
}

TEST(BlockCodecTest, DamageIsHarmless) {
  const Encoded encoded = EncodeSome(32, 4, false);
  ExpectHarmless(encoded.block.directory, [&](ByteSpan span) { return DecodeAll(span, encoded.block).has_value(); });
  EncodedBlock other = encoded.block;
  ExpectHarmless(encoded.block.fingerprints, [&](ByteSpan span) {
    other.fingerprints.assign(span.begin(), span.end());
    return DecodeAll(encoded.block.directory, other).has_value();
  });
  for (std::size_t i = 0; i < encoded.block.packs.size(); ++i) {
    other = encoded.block;
    std::mt19937_64 random(i);
    for (int round = 0; round < 15; ++round) {
      other.packs[i] = encoded.block.packs[i];
      other.packs[i].data[random() % other.packs[i].data.size()] = static_cast<std::byte>(random());
      DecodeAll(encoded.block.directory, other);
    }
  }
}

void ExpectSameCell(const RollupCell& a, const RollupCell& b) {
  EXPECT_EQ(a.finite, b.finite);
  EXPECT_EQ(a.nan, b.nan);
  EXPECT_EQ(a.inf, b.inf);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(a.last), std::bit_cast<std::uint32_t>(b.last));
  EXPECT_EQ(a.last_step, b.last_step);
  if (a.finite != 0) {
    EXPECT_EQ(a.min, b.min);
    EXPECT_EQ(a.max, b.max);
    EXPECT_EQ(a.min_step, b.min_step);
    EXPECT_EQ(a.max_step, b.max_step);
    EXPECT_FLOAT_EQ(static_cast<float>(a.mean), static_cast<float>(b.mean));
  }
  if (a.nan != 0) {
    EXPECT_EQ(a.nan_step, b.nan_step);
  }
  if (a.inf != 0) {
    EXPECT_EQ(a.inf_step, b.inf_step);
    EXPECT_EQ(a.inf_value, b.inf_value);
  }
}

using Cells = std::map<std::tuple<ColumnKey, std::size_t, std::size_t>, RollupCell>;

// What a roll-up must say, straight from the frames.
Cells BruteForce(const std::vector<StepFrame>& frames, std::size_t per_bucket) {
  Cells cells;
  for (std::size_t f = 0; f < frames.size(); ++f) {
    for (const Sample& sample : frames[f].samples) {
      for (std::size_t s = 0; s < kMaxStatistics; ++s) {
        if (((sample.present >> s) & 1u) != 0) {
          cells[{KeyOf(sample), s, f / per_bucket}].Add(frames[f].step, sample.value[s]);
        }
      }
    }
  }
  return cells;
}

Cells DecodeCells(const EncodedBlock& block, const Rollup& directory) {
  Cells cells;
  for (const Pack& pack : block.packs) {
    for (std::size_t s = pack.first_statistic; s <= pack.last_statistic; ++s) {
      EXPECT_TRUE(DecodeRollupSection(directory, pack.kind, FindInPack(pack.data, pack.first_statistic, s),
                                      [&](std::size_t column, std::size_t bucket, const RollupCell& cell) {
                                        cells[{directory.columns[column], s, bucket}] = cell;
                                      }));
    }
  }
  return cells;
}

void ExpectSameCells(const Cells& expected, const Cells& got) {
  ASSERT_EQ(expected.size(), got.size());
  for (const auto& [key, cell] : expected) {
    ASSERT_TRUE(got.contains(key));
    ExpectSameCell(cell, got.at(key));
  }
}

TEST(RollupTest, EveryLevelSaysWhatTheFramesSay) {
  const Encoded encoded = EncodeSome(256, 9, false);
  const Rollup fine = RollUp(encoded.frames, 16);
  const EncodedBlock block = EncodeRollup(fine);
  const auto directory = DecodeRollupDirectory(block.directory);
  ASSERT_TRUE(directory.has_value());
  EXPECT_EQ(directory->buckets.size(), 16u);
  EXPECT_EQ(directory->buckets[3].min_step, encoded.frames[48].step);
  EXPECT_EQ(directory->buckets[3].max_step, encoded.frames[63].step);
  ExpectSameCells(BruteForce(encoded.frames, 16), DecodeCells(block, *directory));

  Rollup merged = MergedDirectory(std::vector<Rollup>{*directory});
  for (const Pack& pack : block.packs) {
    for (std::size_t s = pack.first_statistic; s <= pack.last_statistic; ++s) {
      ASSERT_TRUE(MergeStatistic(merged, *directory, pack.kind, s, FindInPack(pack.data, pack.first_statistic, s)));
    }
  }
  const EncodedBlock coarse = EncodeRollup(merged);
  ExpectSameCells(BruteForce(encoded.frames, 256), DecodeCells(coarse, *DecodeRollupDirectory(coarse.directory)));
}

TEST(RollupTest, DamageIsHarmless) {
  const EncodedBlock block = EncodeRollup(RollUp(EncodeSome(64, 6, false).frames, 16));
  const auto visit = [](std::size_t, std::size_t, const RollupCell&) {};
  const auto directory = DecodeRollupDirectory(block.directory);
  ExpectHarmless(block.directory, [&](ByteSpan span) {
    const auto damaged = DecodeRollupDirectory(span);
    return damaged && DecodeRollupSection(*damaged, block.packs[0].kind, FindInPack(block.packs[0].data, 0, 3), visit);
  });
  const ByteSpan section = FindInPack(block.packs[0].data, block.packs[0].first_statistic, 3);
  ExpectHarmless({section.begin(), section.end()}, [&](ByteSpan span) {
    return !span.empty() && DecodeRollupSection(*directory, block.packs[0].kind, span, visit);
  });
}

}  // namespace
}  // namespace neuraldbg::store
