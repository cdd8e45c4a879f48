// Exported runs of every kind of value, whole and by sections, and what is read of them: shared by the tests of the
// format and of the file.
#pragma once

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
#include "daemon/store/portable_run.h"
#include "daemon/store/run_import.h"
#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {

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

inline Diagnosis AnyDiagnosis() {
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

inline Transition AnyTransition(std::uint64_t id) {
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
inline StoredRun Fill(Store& store, const std::string& name, std::uint64_t seed) {
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

inline std::string Export(StoreReader& reader, const StoredRun& run, const std::string& path) {
  auto writer = PortableRunWriter::Create(path, PortableRunWriter::Existing::kRefuse);
  EXPECT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(reader.ReadRun(run.id, **writer).ok());
  EXPECT_TRUE((*writer)->Finish().ok());
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline ByteSource SourceOf(std::string bytes) {
  return
      [bytes = std::move(bytes), at = std::size_t{0}](std::span<std::byte> to) mutable -> absl::StatusOr<std::size_t> {
        const std::size_t size = std::min(to.size(), bytes.size() - at);
        std::memcpy(to.data(), bytes.data() + at, size);
        at += size;
        return size;
      };
}

inline std::string Head() {
  std::string head(store::kPortableMagic, sizeof store::kPortableMagic);
  const std::uint32_t version = store::kPortableVersion;
  head.append(reinterpret_cast<const char*>(&version), sizeof version);
  return head;
}

inline std::string Compressed(const std::string& plain) {
  std::string packed(ZSTD_compressBound(plain.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), plain.data(), plain.size(), 3));
  return packed;
}

inline std::string SectionOf(Section type, const Bytes& body) {
  std::string section(1, static_cast<char>(type));
  const auto size = static_cast<std::uint32_t>(body.size());
  section.append(reinterpret_cast<const char*>(&size), sizeof size);
  return section.append(reinterpret_cast<const char*>(body.data()), body.size());
}

inline absl::Status Read(const std::string& file) {
  Recorded ignored;
  return ReadPortableRun(SourceOf(file), ignored);
}

class PortableRunTest : public ::testing::Test {
 protected:
  TemporaryDirectory directory_, other_;
  std::unique_ptr<Store> store_ = *Store::Open(directory_.path());
  const std::string path_ = other_.path() + "/run.file";
};

}  // namespace neuraldbg
