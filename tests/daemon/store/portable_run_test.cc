// Goal: an exported run holds all of the run, bit for bit, and a file of a stranger can do no harm. Method: files of
// stored runs with every kind of value, read back, imported, cut, bent and inflated.
#include "daemon/store/portable_run.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "daemon/store/portable_codec.h"
#include "daemon/store/run_import.h"
#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {
namespace {

using store::Bytes;
using store::Section;
using ::testing::HasSubstr;

// Everything that a sink is given, findings as the bytes that they encode to.
struct Recorded final : RunSink {
  absl::Status OnRun(const StoredRun& r) override {
    run = r;
    return absl::OkStatus();
  }
  absl::Status OnRank(RecordedRank rank) override {
    // A store has its own number for the run, and an import no segment.
    rank.rank.key.run_id = 0;
    store::EncodeRank(rank, ranks.emplace_back());
    return absl::OkStatus();
  }
  absl::Status OnTransition(Transition transition) override {
    store::AppendTransition(transition, findings);
    return absl::OkStatus();
  }
  absl::Status OnFrame(StepFrame frame) override {
    frame.rank.run_id = 0;
    frames.push_back(std::move(frame));
    return absl::OkStatus();
  }
  absl::Status OnDiagnosis(Diagnosis diagnosis) override {
    store::EncodeDiagnosis(diagnosis, findings);
    return absl::OkStatus();
  }

  StoredRun run;
  std::vector<Bytes> ranks;
  std::vector<StepFrame> frames;
  Bytes findings;
};

Diagnosis AnyDiagnosis() {
  Hypothesis hypothesis;
  hypothesis.kind = HypothesisKind::NONFINITE_LOSS;
  hypothesis.module = "blocks.3";
  hypothesis.rank = -1;
  hypothesis.confidence = std::nextafter(0.75, 1);
  hypothesis.summary = std::string(700, 's');  // a sentence may be longer than a name
  hypothesis.evidence = {{3, 7, Statistic::kLoss, std::bit_cast<double>(0x7ff8000000abcdefu), -0.0, 1, "It is NaN."}};
  hypothesis.chain = {{2, 6, Phase::kBackward, 0.1, "here"}};
  hypothesis.equivalents = {"LABEL_ANOMALY at loss", ""};
  Diagnosis diagnosis;
  diagnosis.verdict = Verdict::FAULT;
  diagnosis.hypotheses = {hypothesis, Hypothesis{}};
  diagnosis.notices = {{5, -1, HypothesisKind::LOSS_PLATEAU, "", "It rests."}};
  diagnosis.blind_spots = {{9, 1, 3, "No record came."}};
  diagnosis.warm = true;
  diagnosis.steps_seen = 400;
  diagnosis.ranks_seen = {0, 1};
  diagnosis.through_steps = {399, std::numeric_limits<std::uint64_t>::max()};
  return diagnosis;
}

Transition AnyTransition(std::uint64_t id) {
  Transition transition;
  transition.id = id;
  transition.step = 10 * id;
  transition.from = "HEALTHY";
  transition.to = "NONFINITE";
  transition.value = std::numeric_limits<double>::quiet_NaN();
  transition.expected_high = std::numeric_limits<double>::infinity();
  return transition;
}

// Two ranks whose frames alternate, one of them started twice, enough for blocks and for frames that still wait.
StoredRun Fill(Store& store, const std::string& name, std::uint64_t seed) {
  StoredRun run = store.AdoptRun(1000, name, "launch", 2, "torch 2.13").value();
  FrameSource source(seed, 12);
  SiteEntry site;
  site.id = 3;
  site.name = "blöcke.3:output";
  for (std::uint64_t part = 0; part < 12; ++part) {
    const RankKey key{run.id, static_cast<std::uint32_t>(part % 2),
                      part < 6 ? 0u : static_cast<std::uint32_t>(part % 2)};
    std::vector<StepFrame> frames;
    for (std::uint64_t i = 0; i < 30; ++i) frames.push_back(source.Next(key, 30 * (part / 2) + i));
    Commit commit = CommitOf(key, std::move(frames), part);
    commit.manifest = {site, EdgeEntry{0, 3}, ReadyEntry{0}};
    commit.rank.state = part < 10 ? RankState::kFinished : RankState::kDied;
    commit.rank.records_received = 17 * part;
    commit.site_totals = {{3, 30 * part, 29}};
    commit.transitions = {AnyTransition(part + 1)};
    if (part == 11) commit.diagnosis = AnyDiagnosis();
    EXPECT_TRUE(store.Apply(commit).ok());
  }
  EXPECT_TRUE(store.SetRunState(run.id, RunState::kDied).ok());
  return run;
}

std::string Export(StoreReader& reader, const StoredRun& run, const std::string& path) {
  auto writer = PortableRunWriter::Create(path, PortableRunWriter::Existing::kRefuse);
  EXPECT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(reader.ReadRun(run.id, **writer).ok());
  EXPECT_TRUE((*writer)->Finish().ok());
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ByteSource SourceOf(std::string bytes) {
  return
      [bytes = std::move(bytes), at = std::size_t{0}](std::span<std::byte> to) mutable -> absl::StatusOr<std::size_t> {
        const std::size_t size = std::min(to.size(), bytes.size() - at);
        std::memcpy(to.data(), bytes.data() + at, size);
        at += size;
        return size;
      };
}

std::string Head() {
  std::string head(store::kPortableMagic, sizeof store::kPortableMagic);
  const std::uint32_t version = store::kPortableVersion;
  head.append(reinterpret_cast<const char*>(&version), sizeof version);
  return head;
}

std::string Compressed(const std::string& plain) {
  std::string packed(ZSTD_compressBound(plain.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), plain.data(), plain.size(), 3));
  return packed;
}

std::string SectionOf(Section type, const Bytes& body) {
  std::string section(1, static_cast<char>(type));
  const auto size = static_cast<std::uint32_t>(body.size());
  section.append(reinterpret_cast<const char*>(&size), sizeof size);
  return section.append(reinterpret_cast<const char*>(body.data()), body.size());
}

absl::Status Read(const std::string& file) {
  Recorded ignored;
  return ReadPortableRun(SourceOf(file), ignored);
}

class PortableRunTest : public ::testing::Test {
 protected:
  TemporaryDirectory directory_, other_;
  std::unique_ptr<Store> store_ = *Store::Open(directory_.path());
  const std::string path_ = other_.path() + "/run.file";
};

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

TEST_F(PortableRunTest, ASecondImportIsRefused) {
  Export(*store_, Fill(*store_, "gpt", 2), path_);
  ASSERT_TRUE(ImportRun(*store_, path_, 2000).ok());
  const absl::StatusOr<StoredRun> again = ImportRun(*store_, path_, 2000);
  EXPECT_TRUE(absl::IsAlreadyExists(again.status()));
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("gpt#2"));
  EXPECT_EQ(store_->ListRuns()->size(), 2u);
}

TEST_F(PortableRunTest, AnImportThatFailsLeavesNothing) {
  const std::string file = Export(*store_, Fill(*store_, "gpt", 2), path_);
  const std::string cut = other_.path() + "/cut";
  std::ofstream(cut, std::ios::binary) << file.substr(0, file.size() - 5);
  EXPECT_FALSE(ImportRun(*store_, cut, 2000).ok());
  EXPECT_EQ(store_->ListRuns()->size(), 1u);
  EXPECT_TRUE(ImportRun(*store_, path_, 2000).ok()) << "the store goes on";
}

TEST_F(PortableRunTest, AFileIsNotReplacedUnasked) {
  const StoredRun run = Fill(*store_, "gpt", 2);
  std::ofstream(path_) << "mine";
  EXPECT_TRUE(absl::IsAlreadyExists(PortableRunWriter::Create(path_, PortableRunWriter::Existing::kRefuse).status()));
  {
    auto abandoned = PortableRunWriter::Create(path_, PortableRunWriter::Existing::kReplace);
    ASSERT_TRUE(store_->ReadRun(run.id, **abandoned).ok());
  }
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "mine") << "without Finish the file is as it was";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(other_.path()), {}), 1) << "and nothing lies beside it";
}

TEST_F(PortableRunTest, OnlyARegularFileIsWrittenOrRead) {
  const std::string pipe = other_.path() + "/pipe", link = other_.path() + "/link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(path_, link);
  for (const std::string& name : {pipe, link, std::string("/dev/full"), other_.path()}) {
    for (const auto existing : {PortableRunWriter::Existing::kRefuse, PortableRunWriter::Existing::kReplace}) {
      const absl::Status status = PortableRunWriter::Create(name, existing).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(name + " is no regular file"));
    }
  }
  const absl::Status read = ImportRun(*store_, pipe, 2000).status();  // would wait for a writer
  EXPECT_TRUE(absl::IsDataLoss(read)) << read;
}

TEST_F(PortableRunTest, AFileHasNoNameUntilItIsWhole) {
  const StoredRun run = Fill(*store_, "gpt", 2);
  const int probe = ::open(other_.path().c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (probe < 0) GTEST_SKIP() << "this file system names every file";
  ::close(probe);
  const auto here = [this] { return std::distance(std::filesystem::directory_iterator(other_.path()), {}); };
  for (const auto existing : {PortableRunWriter::Existing::kRefuse, PortableRunWriter::Existing::kReplace}) {
    const auto before = here();
    const auto writer = PortableRunWriter::Create(path_, existing);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(store_->ReadRun(run.id, **writer).ok());
    EXPECT_EQ(here(), before) << "a kill now leaves nothing";
    ASSERT_TRUE((*writer)->Finish().ok());
    EXPECT_EQ(here(), 1);
  }
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
