// Columns of 32-bit words (mostly float bit patterns) as few bytes.
//
// Differences between neighbours, zigzag, split into byte planes, each plane constant, plain or zstd. Neighbours in a
// column are the same statistic of the same site at consecutive steps: sign, exponent and leading mantissa bits repeat,
// the rest is noise that no codec removes. Exact for every bit pattern, NaNs included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/store/byte_stream.h"

namespace neuraldbg::store {

void EncodeWords(std::span<const std::uint32_t> words, Bytes& out);

// False (and no promise about `out`) if the bytes are damaged or do not hold exactly `count` words.
bool DecodeWords(ByteReader& reader, std::size_t count, std::vector<std::uint32_t>& out);

// zstd with the size in front; for tables that are not columns. Decompress refuses more than `limit` bytes.
void Compress(ByteSpan bytes, Bytes& out);
bool Decompress(ByteReader& reader, std::size_t limit, Bytes& out);

}  // namespace neuraldbg::store
