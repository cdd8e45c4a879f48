// Blocks as rows: writing one, finding the bytes of one statistic, and closing a block when enough frames wait.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/block_codec.h"
#include "daemon/store/rollup.h"
#include "daemon/store/sqlite_connection.h"

namespace neuraldbg::store {

// A block closes after 64 frames if they are large, else after 256: rows of a few kilobytes would waste half of their
// pages. Both are multiples of the finest roll-up, and no block crosses a multiple of 256, the second one.
inline constexpr std::uint64_t kBlockStride = 64;
inline constexpr std::uint64_t kBlockFramesMax = 256;
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{512} << 10;

// The level of full detail in the blocks table; the others are kRollupLevels.
inline constexpr std::uint32_t kDetailLevel = 0;

// How far a rank has come; a part of its row.
struct RankProgress {
  std::int64_t rank_id = 0;
  std::uint64_t frames = 0, complete_frames = 0, blocked_frames = 0, pending_bytes = 0;
};

// Closes a block, with the roll-ups that it completes, if enough frames wait. To be called after every frame written.
absl::Status CloseBlockIfFull(SqliteConnection& database, RankProgress& progress);

// One statistic of a block; empty if the block has none. The bytes are a copy.
absl::StatusOr<Bytes> ReadSection(SqliteConnection& database, std::int64_t block_id, RecordKind kind,
                                  std::size_t statistic);

// Frames of a full-detail block, with their sequences.
absl::StatusOr<std::vector<NumberedFrame>> ReadBlockFrames(SqliteConnection& database, std::int64_t block_id,
                                                           ByteSpan directory, const RankKey& rank);

absl::Status DamagedBlock(const SqliteConnection& database);

}  // namespace neuraldbg::store
