// The manifest: every entry survives the way through the region, and no byte of it is believed unchecked.
#include "shared/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "shared/checksum.h"

namespace neuraldbg::testing {
namespace {

using ::testing::ElementsAre;

SiteEntry ExampleSite() {
  SiteEntry site;
  site.id = 7;
  site.name = "blocks.3.fc:output";
  site.module = "blocks.3.fc";
  site.module_kind = "Linear";
  site.role = SiteRole::kOutputGradient;
  site.phase = Phase::kBackward;
  site.dtype = DType::kBFloat16;
  site.requires_grad = true;
  site.level = ObservationLevel::kTap;
  site.topological_index = 12;
  site.twin = 3;
  site.covered_by = 9;
  site.tie_group = 2;
  site.optimizer_group = 1;
  site.owner = "blocks.3";
  site.shape = {8, 128, 256};
  return site;
}

RunEntry ExampleRun() {
  RunEntry run;
  run.run_name = "gpt-7";
  run.launch = "job-12";
  run.host = "node01";
  run.framework = "torch 2.13.0";
  run.agent_version = "0.1.0";
  run.rank = 3;
  run.world_size = 8;
  run.incarnation = 2;
  run.start_step = 1000;
  run.compiled = true;
  run.graph_exact = true;
  run.planned_sites = 77;
  run.parameter_count = 42;
  return run;
}

std::vector<std::byte> Encoded(const ManifestEntry& entry) {
  std::vector<std::byte> body;
  EncodeManifestEntry(entry, body);
  return body;
}

// A region and both of its ends.
struct Region {
  explicit Region(std::size_t bytes = 4096) : memory(bytes / 8), span(std::as_writable_bytes(std::span(memory))) {
    writer.Reset(span);
  }
  ManifestHeader& header() { return *reinterpret_cast<ManifestHeader*>(span.data()); }
  std::byte* entries() { return span.data() + sizeof(ManifestHeader); }

  std::vector<std::uint64_t> memory;  // for its alignment
  std::span<std::byte> span;
  ManifestWriter writer;
  ManifestReader reader{span};
};

// Steps of all ReadyEntries that a poll delivers.
std::vector<std::uint64_t> PollSteps(ManifestReader& reader, Errc expected = Errc::kOk) {
  std::vector<std::uint64_t> steps;
  EXPECT_EQ(
      reader.Poll([&steps](const ManifestEntry& entry) { steps.push_back(std::get<ReadyEntry>(entry).step); }).code,
      expected);
  return steps;
}

TEST(ManifestCodecTest, EveryEntryTypeRoundTrips) {
  const std::vector<ManifestEntry> entries = {ExampleRun(),
                                              ExampleSite(),
                                              EdgeEntry{4, 5},
                                              SinkEntry{6},
                                              ParameterInitEntry{7, 100, 1.5, 2.5, 3.5f, 0xabcdefull},
                                              MarkEntry{12, "learning rate halved"},
                                              ReadyEntry{1}};
  for (const ManifestEntry& entry : entries) {
    const std::vector<std::byte> body = Encoded(entry);
    const auto decoded = DecodeManifestEntry(ManifestEntryType(entry), body);
    ASSERT_TRUE(decoded.ok()) << entry.index();
    EXPECT_EQ(decoded.value().index(), entry.index());
    EXPECT_EQ(Encoded(decoded.value()), body);
  }
  const auto decoded = DecodeManifestEntry(2, Encoded(ExampleSite()));
  const auto& site = std::get<SiteEntry>(decoded.value());
  EXPECT_EQ(site.id, 7u);
  EXPECT_EQ(site.name, "blocks.3.fc:output");
  EXPECT_EQ(site.module_kind, "Linear");
  EXPECT_EQ(site.role, SiteRole::kOutputGradient);
  EXPECT_EQ(site.phase, Phase::kBackward);
  EXPECT_EQ(site.dtype, DType::kBFloat16);
  EXPECT_TRUE(site.requires_grad);
  EXPECT_EQ(site.level, ObservationLevel::kTap);
  EXPECT_EQ(site.twin, 3u);
  EXPECT_EQ(site.optimizer_group, 1u);
  EXPECT_EQ(site.owner, "blocks.3");
  EXPECT_THAT(site.shape, ElementsAre(8, 128, 256));
}

TEST(ManifestCodecTest, EveryTruncationIsRefused) {
  for (const ManifestEntry& entry : {ManifestEntry(ExampleRun()), ManifestEntry(ExampleSite())}) {
    const std::vector<std::byte> body = Encoded(entry);
    for (std::size_t bytes = 0; bytes < body.size(); ++bytes) {
      const auto decoded = DecodeManifestEntry(ManifestEntryType(entry), std::span(body).first(bytes));
      ASSERT_FALSE(decoded.ok()) << bytes;
      EXPECT_EQ(decoded.error().code, Errc::kCorrupt);
    }
  }
}

TEST(ManifestCodecTest, FieldsOfALaterReleaseAreIgnored) {
  std::vector<std::byte> body = Encoded(ExampleSite());
  body.resize(body.size() + 5, std::byte{0xff});
  EXPECT_TRUE(DecodeManifestEntry(2, body).ok());
}

TEST(ManifestCodecTest, ValuesOutOfRangeAreRefused) {
  SiteEntry site = ExampleSite();
  site.role = static_cast<SiteRole>(12);
  EXPECT_FALSE(DecodeManifestEntry(2, Encoded(site)).ok());
  site = ExampleSite();
  site.phase = static_cast<Phase>(8);
  EXPECT_FALSE(DecodeManifestEntry(2, Encoded(site)).ok());
  site = ExampleSite();
  site.dtype = static_cast<DType>(14);
  EXPECT_FALSE(DecodeManifestEntry(2, Encoded(site)).ok());
  site = ExampleSite();
  site.level = static_cast<ObservationLevel>(5);
  EXPECT_FALSE(DecodeManifestEntry(2, Encoded(site)).ok());

  std::vector<std::byte> body = Encoded(ExampleSite());
  body[body.size() - 3 * 8 - 1] = std::byte{9};  // rank of the shape
  body.resize(body.size() + 6 * 8);
  EXPECT_FALSE(DecodeManifestEntry(2, body).ok());

  // The length of a string is bounded even where the body is long enough to hold more.
  std::vector<std::byte> mark(8 + 2 + 300, std::byte{'a'});
  const std::uint16_t length = 300;
  std::memcpy(mark.data() + 8, &length, sizeof length);
  EXPECT_FALSE(DecodeManifestEntry(6, mark).ok());
}

TEST(ManifestCodecTest, StringsOfATrainingProcessAreMadePrintable) {
  const std::string hostile(
      "a\x1b[31m\x00\xff"
      "b",
      9);
  std::vector<std::byte> body(8);
  const std::uint16_t length = 9;
  const auto* length_bytes = reinterpret_cast<const std::byte*>(&length);
  body.insert(body.end(), length_bytes, length_bytes + sizeof length);
  for (const char c : hostile) body.push_back(static_cast<std::byte>(c));
  const auto decoded = DecodeManifestEntry(6, body);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<MarkEntry>(decoded.value()).text,
            "a\\x1b[31m\\x00\xef\xbf\xbd"
            "b");
}

TEST(ManifestTest, PollDeliversEachEntryOnce) {
  Region region;
  EXPECT_THAT(PollSteps(region.reader), ElementsAre());
  ASSERT_EQ(region.writer.Append(ReadyEntry{1}).code, Errc::kOk);
  ASSERT_EQ(region.writer.Append(ReadyEntry{2}).code, Errc::kOk);
  EXPECT_THAT(PollSteps(region.reader), ElementsAre(1, 2));
  EXPECT_THAT(PollSteps(region.reader), ElementsAre());
  ASSERT_EQ(region.writer.Append(ReadyEntry{3}).code, Errc::kOk);
  EXPECT_THAT(PollSteps(region.reader), ElementsAre(3));
}

TEST(ManifestTest, AFullRegionRefusesAndCounts) {
  Region region(4096);
  std::size_t appended = 0;
  while (region.writer.Append(ExampleSite()).code == Errc::kOk) ++appended;
  EXPECT_EQ(region.writer.Append(ExampleSite()).code, Errc::kFull);
  EXPECT_EQ(region.reader.overflowed(), 2u);
  std::size_t delivered = 0;
  EXPECT_EQ(region.reader.Poll([&delivered](const ManifestEntry&) { ++delivered; }).code, Errc::kOk);
  EXPECT_GT(appended, 10u);
  EXPECT_EQ(delivered, appended);
  // A smaller entry may still fit where a large one did not.
  EXPECT_EQ(region.writer.Append(SinkEntry{1}).code, Errc::kOk);
}

TEST(ManifestTest, UnknownTypesAreSkipped) {
  Region region;
  ASSERT_EQ(region.writer.Append(ReadyEntry{1}).code, Errc::kOk);
  ASSERT_EQ(region.writer.Append(ReadyEntry{2}).code, Errc::kOk);
  ASSERT_EQ(region.writer.Append(ReadyEntry{3}).code, Errc::kOk);
  const std::uint16_t unknown = 900;
  std::memcpy(region.entries() + 24 + 4, &unknown, sizeof unknown);
  EXPECT_THAT(PollSteps(region.reader), ElementsAre(1, 3));
}

TEST(ManifestTest, EveryFlippedByteOfAnEntryIsNoticed) {
  // Byte 6 and 7 of an entry header are reserved; 4 and 5 are the type, where most flips make an unknown one.
  for (std::size_t at = 0; at < 24; ++at) {
    if (at >= 4 && at < 8) continue;
    Region region;
    ASSERT_EQ(region.writer.Append(ReadyEntry{1}).code, Errc::kOk);
    ASSERT_EQ(region.writer.Append(ReadyEntry{2}).code, Errc::kOk);
    ASSERT_EQ(region.writer.Append(ReadyEntry{3}).code, Errc::kOk);
    region.entries()[24 + at] ^= std::byte{0x40};
    EXPECT_THAT(PollSteps(region.reader, Errc::kCorrupt), ElementsAre(1)) << at;
    EXPECT_THAT(PollSteps(region.reader, Errc::kCorrupt), ElementsAre()) << "corrupt for good";
  }
}

TEST(ManifestTest, ImpossibleLengthsAreRefused) {
  const std::uint64_t impossible[] = {4096, ~std::uint64_t{0}, 25, 8};
  for (const std::uint64_t committed : impossible) {
    Region region;
    ASSERT_EQ(region.writer.Append(ReadyEntry{1}).code, Errc::kOk);
    ASSERT_EQ(region.writer.Append(ReadyEntry{2}).code, Errc::kOk);
    region.header().committed_bytes.store(committed);
    EXPECT_EQ(region.reader.Poll([](const ManifestEntry&) {}).code, Errc::kCorrupt) << committed;
  }
  Region region;
  ASSERT_EQ(region.writer.Append(ReadyEntry{1}).code, Errc::kOk);
  const std::uint32_t huge = 0xffffffffu;
  std::memcpy(region.entries(), &huge, sizeof huge);
  EXPECT_EQ(region.reader.Poll([](const ManifestEntry&) {}).code, Errc::kCorrupt);
}

TEST(ManifestTest, ACommitThatGoesBackIsRefused) {
  Region region;
  ASSERT_EQ(region.writer.Append(ReadyEntry{1}).code, Errc::kOk);
  ASSERT_EQ(region.writer.Append(ReadyEntry{2}).code, Errc::kOk);
  EXPECT_THAT(PollSteps(region.reader), ElementsAre(1, 2));
  region.header().committed_bytes.store(24);
  EXPECT_THAT(PollSteps(region.reader, Errc::kCorrupt), ElementsAre());
}

TEST(ManifestTest, WithoutARegionAppendIsRefused) {
  ManifestWriter writer;
  EXPECT_EQ(writer.Append(ReadyEntry{1}).code, Errc::kDisabled);
}

TEST(ManifestTest, ThreadsAppendWhileTheReaderPolls) {
  Region region(1u << 18);
  constexpr std::uint64_t kPerThread = 1000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&region] {
      for (std::uint64_t step = 0; step < kPerThread; ++step) region.writer.Append(ReadyEntry{step});
    });
  }
  std::size_t delivered = 0;
  while (delivered < 3 * kPerThread) {
    const std::size_t before = delivered;
    delivered += PollSteps(region.reader).size();
    ASSERT_FALSE(::testing::Test::HasFailure());
    if (delivered == before) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(delivered, 3 * kPerThread);
}

TEST(SanitizeStringTest, KeepsPrintableUnicode) {
  EXPECT_EQ(SanitizeString("blöcke.3.fc:出力 ✓ 𝛼"), "blöcke.3.fc:出力 ✓ 𝛼");
}

TEST(SanitizeStringTest, EscapesControlCharacters) {
  EXPECT_EQ(SanitizeString("a\nb\x7f\tc"), "a\\x0ab\\x7f\\x09c");
  EXPECT_EQ(SanitizeString("\xc2\x9b"
                           "31m"),
            "\\x9b31m")
      << "C1 controls drive terminals, too";
}

TEST(SanitizeStringTest, ReplacesInvalidUtf8) {
  const std::string replacement = "\xef\xbf\xbd";
  EXPECT_EQ(SanitizeString("\xff"), replacement);
  EXPECT_EQ(SanitizeString("\xc0\xaf"), replacement + replacement) << "overlong";
  EXPECT_EQ(SanitizeString("\xed\xa0\x80"), replacement + replacement + replacement) << "surrogate";
  EXPECT_EQ(SanitizeString("\xf4\x90\x80\x80"), replacement + replacement + replacement + replacement) << "too large";
  EXPECT_EQ(SanitizeString("a\xe2\x82"), "a" + replacement + replacement) << "cut short";
}

TEST(SanitizeStringTest, CutsOnACharacterBoundary) {
  EXPECT_EQ(SanitizeString(std::string(300, 'x')), std::string(256, 'x'));
  EXPECT_EQ(SanitizeString(std::string(255, 'x') + "ö"), std::string(255, 'x'));
  EXPECT_EQ(SanitizeString(std::string(254, 'x') + "\n"), std::string(254, 'x'));
}

TEST(SanitizeStringTest, IsIdempotent) {
  const std::string once = SanitizeString("a\x01\xff\\x01");
  EXPECT_EQ(SanitizeString(once), once);
}

}  // namespace
}  // namespace neuraldbg::testing
