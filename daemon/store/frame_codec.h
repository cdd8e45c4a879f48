// One StepFrame as bytes: the form in which a frame waits until its block is full.
//
// Exact: what is decoded equals what was encoded bit for bit, NaN payloads included. A value whose present bit is clear
// is not kept and reads back as 0. The rank is not part of the bytes; the row that holds them knows it.
#pragma once

#include <optional>

#include "daemon/model/sample.h"
#include "daemon/store/byte_stream.h"

namespace neuraldbg::store {

// Whether kinds and phases are ones that the decoder accepts.
bool IsEncodable(const StepFrame& frame);

void EncodeFrame(const StepFrame& frame, Bytes& out);

// Nothing if the bytes are damaged.
std::optional<StepFrame> DecodeFrame(ByteSpan bytes, const RankKey& rank);

// The fields of a frame besides its samples, shared with the block format.
void EncodeFrameHead(const StepFrame& frame, ByteWriter& writer);
StepFrame DecodeFrameHead(ByteReader& reader, const RankKey& rank);

// The values that a sample holds, lowest statistic first; bits beyond kMaxStatistics have no value.
inline constexpr std::uint32_t kValueMask = (1u << kMaxStatistics) - 1;

}  // namespace neuraldbg::store
