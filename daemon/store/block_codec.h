// A block: consecutive frames of one rank at full detail, sites × steps, column by column.
//
// Exact, as the frame codec is: decoding gives bit for bit the frames that went in, in their order. Frames whose
// samples are not sorted (see CollectColumns) are kept frame by frame in the directory instead.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "daemon/store/block_layout.h"

namespace neuraldbg::store {

// A frame and its place in the order in which the frames of a run were committed.
struct NumberedFrame {
  std::uint64_t sequence = 0;
  StepFrame frame;
};

EncodedBlock EncodeBlock(std::span<const StepFrame> frames, std::span<const std::uint64_t> sequences);

// Where the values of a column are: for each frame whether there is a sample, and with what marks.
struct SampleMark {
  bool exists = false, has_bits = false;
  std::uint16_t flags = 0;
  std::uint32_t present = 0;
  bool operator==(const SampleMark&) const = default;
};

struct BlockDirectory {
  std::vector<std::uint64_t> sequences;
  std::vector<StepFrame> frames;  // without samples, unless unsorted
  bool unsorted = false;          // the frames are complete and there are no columns
  std::vector<ColumnKey> columns;
  std::vector<SampleMark> marks;  // column × frame

  const SampleMark& Mark(std::size_t column, std::size_t frame) const { return marks[column * frames.size() + frame]; }
};

// Nothing if the bytes are damaged.
std::optional<BlockDirectory> DecodeDirectory(ByteSpan bytes, const RankKey& rank);

// Calls `visit(column, frame, value)` for every value of one statistic, column by column. False if damaged.
bool DecodeStatistic(const BlockDirectory& directory, RecordKind kind, std::size_t statistic, ByteSpan section,
                     const std::function<void(std::size_t column, std::size_t frame, float value)>& visit);

// Fills `samples` of the directory's frames. `section(kind, statistic)` finds the bytes of a statistic.
bool DecodeSamples(BlockDirectory& directory, const std::function<ByteSpan(RecordKind, std::size_t)>& section,
                   ByteSpan fingerprints);

}  // namespace neuraldbg::store
