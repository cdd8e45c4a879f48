// What every store test needs: a directory that goes away, frames with every kind of value, and an exact comparison.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "daemon/store/store.h"

namespace neuraldbg {

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Bit for bit: NaN payloads, signed zeros and presence count; a value that is not present does not.
bool SameSample(const Sample& a, const Sample& b);
::testing::AssertionResult SameFrame(const StepFrame& a, const StepFrame& b);
::testing::AssertionResult SameFrames(const std::vector<StepFrame>& a, const std::vector<StepFrame>& b);

// Frames as a rank would send them: `sites` tensor sites, a parameter for every fourth, optimizer, loss and step;
// values of every class (ordinary, signed zero, denormal, infinities, NaNs with payloads), sites that are missing now
// and then.
class FrameSource {
 public:
  FrameSource(std::uint64_t seed, std::uint32_t sites) : random_(seed), sites_(sites) {}
  StepFrame Next(const RankKey& rank, std::uint64_t step);
  float AnyFloat();

 private:
  Sample RandomSample(std::uint32_t site, RecordKind kind, Phase phase);
  std::mt19937_64 random_;
  std::uint32_t sites_;
};

// A commit of `frames` for a rank, with lane heads that say how many records they hold.
Commit CommitOf(const RankKey& key, std::vector<StepFrame> frames, std::uint64_t head);

}  // namespace neuraldbg
