// A writer that does anything to lane 0 and to all that is not a lane, and keeps the rules on lane 1; and what must
// hold of a reader of its segment. Played from a list of operations: by a property test, which shrinks what fails, and
// by a fuzzer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shared/mapping.h"
#include "shared/ring_layout.h"
#include "shared/ring_reader.h"
#include "tests/shared/scratch_directory.h"

namespace neuraldbg::testing {

struct Operation {
  std::uint8_t kind = 0;
  std::uint32_t where = 0;
  std::uint64_t value = 0;
};
inline constexpr std::uint8_t kOperationKinds = 12;

class ArbitraryWriter {
 public:
  ArbitraryWriter();

  // From the empty segment through all operations to the end. Empty, or which promise the reader broke.
  std::string Play(std::span<const Operation> operations);

 private:
  static constexpr std::uint32_t kSites = 16, kCapacity = 64;

  std::string Apply(const Operation& operation);
  void Scribble(const Operation& operation);
  void WriteRecord(std::uint32_t lane, std::uint64_t index, std::uint64_t attempt, std::uint32_t site);
  void PushHonestly(std::uint64_t count);
  std::string Attach();
  std::string Drain(std::size_t limit);
  void Commit();
  std::string Check(std::uint32_t lane, std::span<const Record> records);

  ScratchDirectory directory_;
  std::string path_;
  FileDescriptor file_;
  std::unique_ptr<Mapping> mapping_;
  SegmentView view_;
  std::uint64_t salt_ = 0;
  std::vector<std::byte> empty_;  // the segment as it was made

  std::unique_ptr<SegmentReader> reader_;
  std::vector<LaneCheckpoint> durable_;
  std::array<std::uint64_t, 2> next_attempt_{};
  std::uint64_t honest_tail_ = 0, honest_dropped_ = 0;  // of lane 1
  std::uint64_t delivered_ = 0, committed_ = 0;         // positions of lane 1
  std::vector<std::uint64_t> honest_attempts_;          // of the n-th record that was published there
};

}  // namespace neuraldbg::testing
