// What full-detail blocks and roll-ups have in common: columns, and packs of encoded statistics.
//
// A column is one site as one record kind in one phase. Values are kept kind by kind and statistic by statistic, so
// that a query for one statistic decodes that statistic only.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "daemon/model/sample.h"
#include "daemon/store/byte_stream.h"

namespace neuraldbg::store {

// In the order of samples within a frame.
struct ColumnKey {
  Phase phase = Phase::kForward;
  std::uint32_t site = kNoSite;
  RecordKind kind = RecordKind::kNone;
  auto operator<=>(const ColumnKey&) const = default;
};
ColumnKey KeyOf(const Sample& sample);

void EncodeColumns(std::span<const ColumnKey> columns, ByteWriter& writer);
// Empty result with a failed reader for damaged bytes.
std::vector<ColumnKey> DecodeColumns(ByteReader& reader);

// All columns of the frames, sorted. False if a frame's samples are not strictly in the order of columns, which only a
// repeated or unsorted site can cause.
bool CollectColumns(std::span<const StepFrame> frames, std::vector<ColumnKey>& columns);

// The encoded statistics [first, last] of one kind: for each its length and its bytes.
struct Pack {
  RecordKind kind = RecordKind::kNone;
  std::uint8_t first_statistic = 0, last_statistic = 0;
  Bytes data;
};

struct EncodedBlock {
  Bytes directory;
  std::vector<Pack> packs;
  Bytes fingerprints;  // full detail only
};

// Calls `encode(kind, statistic, out)` for every statistic of every kind among the columns, and packs the results.
void PackStatistics(std::span<const ColumnKey> columns,
                    const std::function<void(RecordKind, std::size_t, Bytes&)>& encode, std::vector<Pack>& packs);

// The bytes of one statistic within a pack; empty if it is not there.
ByteSpan FindInPack(ByteSpan pack, std::size_t first_statistic, std::size_t statistic);

// No table of one block is larger; a size beyond it is damage.
inline constexpr std::size_t kMaxTableBytes = std::size_t{1} << 28;

}  // namespace neuraldbg::store
