#include "tests/daemon/store/store_fixture.h"

#include <stdlib.h>

#include <algorithm>

namespace neuraldbg {

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "neuraldbg-store-XXXXXX").string();
  path_ = ::mkdtemp(pattern.data());
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

bool SameSample(const Sample& a, const Sample& b) {
  if (a.site != b.site || a.kind != b.kind || a.phase != b.phase || a.flags != b.flags || a.present != b.present ||
      a.has_bits != b.has_bits || (a.has_bits && a.bits != b.bits)) {
    return false;
  }
  for (std::size_t i = 0; i < kMaxStatistics; ++i) {
    if (((a.present >> i) & 1u) != 0 &&
        std::bit_cast<std::uint32_t>(a.value[i]) != std::bit_cast<std::uint32_t>(b.value[i])) {
      return false;
    }
  }
  return true;
}

::testing::AssertionResult SameFrame(const StepFrame& a, const StepFrame& b) {
  if (a.rank != b.rank || a.step != b.step || a.complete != b.complete || a.applied != b.applied ||
      a.training != b.training || a.records_received != b.records_received || a.records_missing != b.records_missing ||
      a.time_ns != b.time_ns) {
    return ::testing::AssertionFailure() << "heads differ at step " << a.step << " / " << b.step;
  }
  if (a.samples.size() != b.samples.size()) {
    return ::testing::AssertionFailure() << a.samples.size() << " samples, not " << b.samples.size() << ", at step "
                                         << a.step;
  }
  for (std::size_t i = 0; i < a.samples.size(); ++i) {
    if (!SameSample(a.samples[i], b.samples[i])) {
      return ::testing::AssertionFailure()
             << "sample " << i << " (site " << a.samples[i].site << ") differs at step " << a.step;
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult SameFrames(const std::vector<StepFrame>& a, const std::vector<StepFrame>& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " frames, not " << b.size();
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (auto same = SameFrame(a[i], b[i]); !same) {
      return same << " (frame " << i << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

float FrameSource::AnyFloat() {
  const auto word = static_cast<std::uint32_t>(random_());
  switch (random_() % 8) {
    case 0:
      return std::bit_cast<float>(word);  // anything at all
    case 1:
      return std::bit_cast<float>(0x7fc00000u | (word & 0x803fffffu));  // NaN with sign and payload
    case 2:
      return std::bit_cast<float>(0x7f800000u | (word & 0x80000000u));  // infinities
    case 3:
      return std::bit_cast<float>(word & 0x80000000u);  // signed zeros
    case 4:
      return std::bit_cast<float>(word & 0x807fffffu);  // denormals
    default:
      return 1.0f + static_cast<float>(word % 1000) / 1000.0f;
  }
}

Sample FrameSource::RandomSample(std::uint32_t site, RecordKind kind, Phase phase) {
  Sample sample;
  sample.site = site;
  sample.kind = kind;
  sample.phase = phase;
  sample.flags = random_() % 4 == 0 ? static_cast<std::uint16_t>(random_()) : std::uint16_t{kFlagTraining};
  const std::size_t statistics = StatisticsOf(kind).size();
  for (std::size_t i = 0; i < statistics; ++i) {
    if (random_() % 10 != 0) {
      sample.present |= 1u << i;
      sample.value[i] = AnyFloat();
    }
  }
  sample.has_bits = random_() % 3 != 0;
  sample.bits = sample.has_bits ? random_() : 0;
  return sample;
}

StepFrame FrameSource::Next(const RankKey& rank, std::uint64_t step) {
  StepFrame frame;
  frame.rank = rank;
  frame.step = step;
  frame.complete = random_() % 16 != 0;
  frame.applied = random_() % 8 != 0;
  frame.training = random_() % 16 != 0;
  frame.records_received = random_() % 1000;
  frame.records_missing = random_() % 3;
  frame.time_ns = random_();
  const auto maybe = [&](std::uint32_t site, RecordKind kind, Phase phase) {
    if (random_() % 12 != 0) {
      frame.samples.push_back(RandomSample(site, kind, phase));
    }
  };
  for (std::uint32_t site = 0; site < sites_; ++site) {
    maybe(site, RecordKind::kTensor, Phase::kForward);
    if (site % 7 == 0) {
      maybe(site, RecordKind::kAttention, Phase::kForward);
    }
  }
  maybe(10000, RecordKind::kLoss, Phase::kLoss);
  for (std::uint32_t site = 0; site < sites_; ++site) {
    maybe(1000 + site, RecordKind::kTensor, Phase::kBackward);
  }
  maybe(10001, RecordKind::kOptimizer, Phase::kOptimizer);
  for (std::uint32_t site = 0; site < sites_; site += 4) {
    maybe(2000 + site, RecordKind::kParameter, Phase::kParameter);
  }
  maybe(10002, RecordKind::kStep, Phase::kSystem);
  return frame;
}

Commit CommitOf(const RankKey& key, std::vector<StepFrame> frames, std::uint64_t head) {
  Commit commit;
  commit.rank.key = key;
  commit.rank.host = "host";
  commit.rank.pid = 4242;
  commit.rank.last_step = frames.empty() ? 0 : frames.back().step;
  commit.rank.segment_uuid[0] = static_cast<std::uint8_t>(key.rank);
  commit.rank.segment_uuid[1] = static_cast<std::uint8_t>(key.incarnation);
  commit.rank.segment_uuid[2] = static_cast<std::uint8_t>(key.run_id);
  commit.lane_heads = {{head, head + 1}};
  commit.frames = std::move(frames);
  return commit;
}

}  // namespace neuraldbg
