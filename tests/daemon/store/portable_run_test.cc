// Goal: an exported run holds all of the run, bit for bit, and a file of a stranger can do no harm. Method: files of
// stored runs with every kind of value, read back, imported, cut, bent and inflated.
#include "tests/daemon/store/portable_fixture.h"

namespace neuraldbg {
namespace {

TEST_F(PortableRunTest, WhatIsReadIsWhatWasStored_BitForBit) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const StoredRun run = Fill(*store_, "gpt-" + std::to_string(seed), seed);
    Recorded stored, read;
    ASSERT_TRUE(store_->ReadRun(run.id, stored).ok());
    const std::string file = path_ + std::to_string(seed);
    Export(*store_, run, file);
    ASSERT_TRUE(ReadPortableRun(file, read).ok());
    EXPECT_EQ(stored.frames.size(), 360u);
    EXPECT_TRUE(SameFrames(stored.frames, read.frames));
    EXPECT_EQ(stored.ranks, read.ranks);
    EXPECT_EQ(stored.findings, read.findings);
    EXPECT_EQ(read.run.name, run.name);
    EXPECT_EQ(read.run.state, RunState::kDied);
  }
}

TEST_F(PortableRunTest, FramesComeInTheOrderOfTheirCommits) {
  const StoredRun run = Fill(*store_, "gpt", 1);
  Recorded read;
  ASSERT_TRUE(store_->ReadRun(run.id, read).ok());
  std::vector<StepFrame> committed = *store_->FramesSince(run.id, 0);
  for (StepFrame& frame : committed) frame.rank.run_id = 0;
  EXPECT_TRUE(SameFrames(committed, read.frames));
}

TEST_F(PortableRunTest, AnImportedRunIsTheRun) {
  const StoredRun run = Fill(*store_, "gpt", 2);
  Recorded stored, imported;
  ASSERT_TRUE(store_->ReadRun(run.id, stored).ok());
  Export(*store_, run, path_);
  const absl::StatusOr<StoredRun> copy = ImportRun(*store_, path_, 2000);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->display_name, "gpt#2");
  EXPECT_EQ(copy->owner_uid, 2000u);
  EXPECT_EQ(copy->state, RunState::kDied);
  EXPECT_THAT(copy->launch, ::testing::StartsWith("imported:"));
  ASSERT_TRUE(store_->ReadRun(copy->id, imported).ok());
  EXPECT_TRUE(SameFrames(stored.frames, imported.frames));
  EXPECT_EQ(stored.ranks, imported.ranks);
  EXPECT_EQ(stored.findings, imported.findings);
}

// The segment may still be drained on this host: its place must stay where it was.
TEST_F(PortableRunTest, AnImportLeavesSegmentsAlone) {
  const StoredRun run = Fill(*store_, "gpt", 2);
  SegmentUuid uuid{};
  uuid[2] = static_cast<std::uint8_t>(run.id);  // of rank 0, incarnation 0 (CommitOf)
  Export(*store_, run, path_);
  ASSERT_TRUE(ImportRun(*store_, path_, 2000).ok());
  const auto resume = store_->ResumeSegment(uuid);
  ASSERT_TRUE(resume.ok() && resume->has_value());
  EXPECT_EQ(resume->value().key.run_id, run.id);
  EXPECT_FALSE(store_->ResumeSegment(SegmentUuid{})->has_value()) << "what has no segment takes no place of one";
}

TEST_F(PortableRunTest, AFileThatIsCutAnywhereIsRefused) {
  const std::string file = Export(*store_, Fill(*store_, "gpt", 3), path_);
  for (std::size_t size = 0; size < file.size(); size += size < 64 ? 1 : 997) {
    EXPECT_TRUE(absl::IsDataLoss(Read(file.substr(0, size)))) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(Read(file.substr(0, file.size() - 1))));
}

// Some bits of a zstd stream mean nothing; the checksum is of what comes out.
TEST_F(PortableRunTest, AWrongBitAnywhere_IsRefusedOrChangesNothing) {
  const std::string file = Export(*store_, Fill(*store_, "gpt", 3), path_);
  Recorded whole;
  ASSERT_TRUE(ReadPortableRun(SourceOf(file), whole).ok());
  std::size_t refused = 0, bent_files = 0;
  for (std::size_t at = 0; at < file.size(); at += at < 64 ? 1 : 2991, ++bent_files) {
    std::string bent = file;
    bent[at] = static_cast<char>(bent[at] ^ (1 << at % 8));
    Recorded read;
    const absl::Status status = ReadPortableRun(SourceOf(bent), read);
    refused += absl::IsDataLoss(status) ? 1 : 0;
    if (!status.ok()) continue;
    EXPECT_TRUE(SameFrames(whole.frames, read.frames)) << at;
    EXPECT_EQ(whole.ranks, read.ranks) << at;
    EXPECT_EQ(whole.findings, read.findings) << at;
  }
  EXPECT_GE(refused, bent_files - 3);
}

TEST_F(PortableRunTest, RefusalsSayWhy) {
  const std::string file = Export(*store_, Fill(*store_, "gpt", 3), path_);
  std::string newer = file;
  newer[sizeof store::kPortableMagic] = 9;
  const auto message = [](const std::string& bytes) { return std::string(Read(bytes).message()); };
  EXPECT_THAT(message(newer), HasSubstr("version 9"));
  EXPECT_THAT(message(file + "x"), HasSubstr("behind its end"));
  EXPECT_THAT(message(file.substr(0, file.size() / 2)), HasSubstr("cut short"));
  EXPECT_THAT(message("SQLite format 3"), HasSubstr("not an exported run"));
  Recorded ignored;
  const absl::Status missing = ReadPortableRun(other_.path() + "/none", ignored);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/none cannot be read: No such file"));
}

TEST_F(PortableRunTest, ABombIsRefusedBeforeItGrows) {
  StoredRun run;
  run.name = "bomb";
  Bytes head;
  store::EncodeRun(run, head);
  // Sections of nothing: each may be there, a gigabyte of them may not.
  std::string plain = SectionOf(Section::kRun, head);
  plain.resize(plain.size() + (std::size_t{64} << 20), '\0');
  for (std::size_t at = plain.size() - (std::size_t{64} << 20); at + 5 <= plain.size(); at += 5) {
    plain[at] = static_cast<char>(Section::kTransitions);
  }
  const absl::Status status = Read(Head() + Compressed(plain));
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("grows"));
}

TEST_F(PortableRunTest, AClaimedSizeTakesNoMemory) {
  std::string section(1, static_cast<char>(Section::kRun));
  section += "\xff\xff\xff\xff";
  EXPECT_TRUE(absl::IsDataLoss(Read(Head() + Compressed(section))));
  // A list of 2^62 hypotheses in ten bytes.
  Bytes diagnosis;
  store::ByteWriter writer(diagnosis);
  for (const std::uint64_t field : {0u, 0u, 0u, 0u, 0u}) writer.Varint(field);
  writer.Varint(std::uint64_t{1} << 62);
  EXPECT_FALSE(store::DecodeDiagnosis(diagnosis).has_value());
}

TEST_F(PortableRunTest, StringsOfStrangersBecomePrintable) {
  StoredRun run;
  run.name = "gpt";
  run.launch = "a\x1b[2Jb";
  run.framework = "\xff";
  Bytes body;
  store::EncodeRun(run, body);
  const auto read = store::DecodeRun(body);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read.value().launch, "a\\x1b[2Jb");
  EXPECT_EQ(read.value().framework, "\xef\xbf\xbd");
  Transition transition;
  transition.to = "\n";
  Diagnosis diagnosis;
  diagnosis.hypotheses.resize(1);
  diagnosis.hypotheses[0].summary = "\x07";
  Bytes findings, section;
  store::EncodeDiagnosis(diagnosis, findings);
  EXPECT_EQ(store::DecodeDiagnosis(findings).value().hypotheses[0].summary, "\\x07");
  store::AppendTransition(transition, section);
  store::ByteReader reader(section);
  EXPECT_EQ(store::TakeTransition(reader).value().to, "\\x0a");
}

TEST_F(PortableRunTest, WhatNoRunHasIsRefused) {
  StoredRun run;
  for (const char* name : {"", "../x", "a b", "-x"}) {
    run.name = name;
    Bytes body;
    store::EncodeRun(run, body);
    EXPECT_FALSE(store::DecodeRun(body).has_value()) << name;
  }
  RecordedRank rank;
  rank.rank.key.rank = kRanksMax;
  Bytes body;
  store::EncodeRank(rank, body);
  EXPECT_FALSE(store::DecodeRank(body).has_value());
  rank.rank.key.rank = 0;
  rank.manifest = {EdgeEntry{0, kNoSite}};
  body.clear();
  store::EncodeRank(rank, body);
  EXPECT_FALSE(store::DecodeRank(body).has_value());
}

TEST_F(PortableRunTest, AFileThatDoesNotAddUpIsRefused) {
  StoredRun run;
  run.name = "gpt";
  RecordedRank rank;
  rank.frames = 2;
  Bytes head, rank_body, end;
  store::EncodeRun(run, head);
  store::EncodeRank(rank, rank_body);
  store::EncodeCounts({.ranks = 1}, end);
  const std::string begin = SectionOf(Section::kRun, head), one = SectionOf(Section::kRank, rank_body);
  const auto refused = [](const std::string& sections) {
    Recorded ignored;
    return absl::IsDataLoss(ReadPortableSections(SourceOf(sections), ignored));
  };
  EXPECT_TRUE(refused(begin + one + SectionOf(Section::kEnd, end))) << "two frames are missing";
  EXPECT_TRUE(refused(begin + one + one + SectionOf(Section::kEnd, end))) << "one rank twice";
  EXPECT_TRUE(refused(one + begin + SectionOf(Section::kEnd, end))) << "in another order";
  rank.frames = 0;
  rank_body.clear();
  store::EncodeRank(rank, rank_body);
  const std::string whole = begin + SectionOf(Section::kRank, rank_body) + SectionOf(Section::kEnd, end);
  EXPECT_FALSE(refused(whole));
  EXPECT_TRUE(refused(whole + SectionOf(Section::kEnd, end))) << "more behind the end";
  EXPECT_TRUE(refused(begin + SectionOf(Section::kEnd, end))) << "a rank less than the end counts";
}

}  // namespace
}  // namespace neuraldbg
