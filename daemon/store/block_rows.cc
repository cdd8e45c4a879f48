#include "daemon/store/block_rows.h"

#include <algorithm>
#include <array>
#include <map>

#include "absl/strings/str_cat.h"
#include "daemon/store/frame_codec.h"
#include "daemon/store/status_macros.h"
#include "daemon/store/store_queries.h"

namespace neuraldbg::store {
namespace {

struct BlockPlace {
  std::uint32_t level = kDetailLevel;
  std::uint64_t first_frame = 0, frames = 0;
  std::uint64_t min_step = 0, max_step = 0;
  std::uint64_t last_sequence = 0;
};

absl::Status InsertBlock(SqliteConnection& database, std::int64_t rank_id, const BlockPlace& place,
                         const EncodedBlock& block) {
  STORE_RETURN_IF_ERROR(database.Use("INSERT INTO blocks VALUES (NULL,?,?,?,?,?,?,?,?)")
                            .Bind(rank_id)
                            .Bind(place.level)
                            .Bind(place.first_frame)
                            .Bind(place.frames)
                            .Bind(StepColumn(place.min_step))
                            .Bind(StepColumn(place.max_step))
                            .Bind(place.last_sequence)
                            .Bind(block.directory)
                            .Run());
  const std::int64_t id = database.last_insert_id();
  for (const Pack& pack : block.packs) {
    STORE_RETURN_IF_ERROR(database.Use("INSERT INTO packs VALUES (NULL,?,?,?,?,?)")
                              .Bind(id)
                              .Bind(pack.kind)
                              .Bind(pack.first_statistic)
                              .Bind(pack.last_statistic)
                              .Bind(pack.data)
                              .Run());
  }
  if (!block.fingerprints.empty()) {
    STORE_RETURN_IF_ERROR(
        database.Use("INSERT INTO fingerprints VALUES (?,?)").Bind(id).Bind(block.fingerprints).Run());
  }
  return absl::OkStatus();
}

// A roll-up block as it lies in the database.
struct StoredRollup {
  std::int64_t id = 0;
  Rollup directory;
};

absl::StatusOr<std::vector<StoredRollup>> LoadRollups(SqliteConnection& database, std::int64_t rank_id,
                                                      std::uint32_t level, std::uint64_t first, std::uint64_t end) {
  std::vector<StoredRollup> rollups;
  STORE_RETURN_IF_ERROR(
      database
          .Use("SELECT id, directory FROM blocks WHERE rank_id=? AND level=? AND first_frame>=? AND first_frame<? "
               "ORDER BY first_frame")
          .Bind(rank_id)
          .Bind(level)
          .Bind(first)
          .Bind(end)
          .ForEach([&](const SqliteRow& row) {
            std::optional<Rollup> directory = DecodeRollupDirectory(row.Blob(1));
            if (!directory) {
              return DamagedBlock(database);
            }
            rollups.push_back({row.Int(0), *std::move(directory)});
            return absl::OkStatus();
          }));
  return rollups;
}

// Makes the bucket of `level` that ends with `end` out of the level beneath it.
absl::Status CloseRollup(SqliteConnection& database, std::int64_t rank_id, std::uint32_t finer, std::uint32_t level,
                         std::uint64_t end) {
  STORE_ASSIGN_OR_RETURN(const std::vector<StoredRollup> stored,
                         LoadRollups(database, rank_id, finer, end - level, end));
  std::vector<Rollup> parts;
  for (const StoredRollup& part : stored) {
    parts.push_back(part.directory);
  }
  Rollup merged = MergedDirectory(parts);
  for (const StoredRollup& part : stored) {
    STORE_RETURN_IF_ERROR(
        database
            .Use("SELECT kind, first_statistic, last_statistic, data FROM packs WHERE block_id=? "
                 "ORDER BY kind, first_statistic")
            .Bind(part.id)
            .ForEach([&](const SqliteRow& row) {
              const auto kind = static_cast<RecordKind>(row.Int(0));
              const auto first = row.Unsigned<std::size_t>(1);
              for (std::size_t s = first; s <= row.Unsigned<std::size_t>(2) && s < kMaxStatistics; ++s) {
                if (!MergeStatistic(merged, part.directory, kind, s, FindInPack(row.Blob(3), first, s))) {
                  return DamagedBlock(database);
                }
              }
              return absl::OkStatus();
            }));
  }
  const RollupBucket& bucket = merged.buckets.front();
  return InsertBlock(database, rank_id, {level, end - level, level, bucket.min_step, bucket.max_step, 0},
                     EncodeRollup(merged));
}

absl::Status CloseBlock(SqliteConnection& database, RankProgress& progress) {
  std::vector<StepFrame> frames;
  std::vector<std::uint64_t> sequences;
  STORE_RETURN_IF_ERROR(database.Use("SELECT sequence, data FROM pending_frames WHERE rank_id=? ORDER BY sequence")
                            .Bind(progress.rank_id)
                            .ForEach([&](const SqliteRow& row) {
                              std::optional<StepFrame> frame = DecodeFrame(row.Blob(1), RankKey{});
                              if (!frame) {
                                return DamagedBlock(database);
                              }
                              sequences.push_back(row.Unsigned<std::uint64_t>(0));
                              frames.push_back(*std::move(frame));
                              return absl::OkStatus();
                            }));
  const Rollup rollup = RollUp(frames, kRollupLevels.front());
  BlockPlace place{kDetailLevel, progress.blocked_frames, frames.size(), UINT64_MAX, 0, sequences.back()};
  for (const RollupBucket& bucket : rollup.buckets) {
    place.min_step = std::min(place.min_step, bucket.min_step);
    place.max_step = std::max(place.max_step, bucket.max_step);
  }
  STORE_RETURN_IF_ERROR(InsertBlock(database, progress.rank_id, place, EncodeBlock(frames, sequences)));
  place.level = kRollupLevels.front();
  STORE_RETURN_IF_ERROR(InsertBlock(database, progress.rank_id, place, EncodeRollup(rollup)));
  STORE_RETURN_IF_ERROR(database.Use("DELETE FROM pending_frames WHERE rank_id=?").Bind(progress.rank_id).Run());
  progress.blocked_frames += frames.size();
  progress.pending_bytes = 0;
  for (std::size_t i = 1; i < kRollupLevels.size() && progress.blocked_frames % kRollupLevels[i] == 0; ++i) {
    STORE_RETURN_IF_ERROR(
        CloseRollup(database, progress.rank_id, kRollupLevels[i - 1], kRollupLevels[i], progress.blocked_frames));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DamagedBlock(const SqliteConnection& database) {
  return absl::DataLossError(
      absl::StrCat(database.path(), " holds damaged frames; move it away to start with an empty one."));
}

absl::Status CloseBlockIfFull(SqliteConnection& database, RankProgress& progress) {
  if (progress.frames % kBlockStride != 0 ||
      (progress.pending_bytes < kBlockBytes && progress.frames % kBlockFramesMax != 0)) {
    return absl::OkStatus();
  }
  return CloseBlock(database, progress);
}

absl::StatusOr<Bytes> ReadSection(SqliteConnection& database, std::int64_t block_id, RecordKind kind,
                                  std::size_t statistic) {
  Bytes section;
  STORE_RETURN_IF_ERROR(
      database
          .Use("SELECT first_statistic, data FROM packs WHERE block_id=? AND kind=? AND first_statistic<=? "
               "AND last_statistic>=?")
          .Bind(block_id)
          .Bind(kind)
          .Bind(statistic)
          .Bind(statistic)
          .First([&](const SqliteRow& row) {
            const ByteSpan found = FindInPack(row.Blob(1), row.Unsigned<std::size_t>(0), statistic);
            section.assign(found.begin(), found.end());
          })
          .status());
  return section;
}

absl::StatusOr<std::vector<NumberedFrame>> ReadBlockFrames(SqliteConnection& database, std::int64_t block_id,
                                                           ByteSpan directory_bytes, const RankKey& rank) {
  std::optional<BlockDirectory> directory = DecodeDirectory(directory_bytes, rank);
  if (!directory) {
    return DamagedBlock(database);
  }
  std::map<std::pair<RecordKind, std::size_t>, Bytes> sections;
  STORE_RETURN_IF_ERROR(database.Use("SELECT kind, first_statistic, last_statistic, data FROM packs WHERE block_id=?")
                            .Bind(block_id)
                            .ForEach([&](const SqliteRow& row) {
                              const auto first = row.Unsigned<std::size_t>(1);
                              for (std::size_t s = first; s <= row.Unsigned<std::size_t>(2) && s < kMaxStatistics;
                                   ++s) {
                                const ByteSpan found = FindInPack(row.Blob(3), first, s);
                                sections[{static_cast<RecordKind>(row.Int(0)), s}].assign(found.begin(), found.end());
                              }
                              return absl::OkStatus();
                            }));
  Bytes fingerprints;
  STORE_RETURN_IF_ERROR(database.Use("SELECT data FROM fingerprints WHERE block_id=?")
                            .Bind(block_id)
                            .First([&](const SqliteRow& row) {
                              const ByteSpan data = row.Blob(0);
                              fingerprints.assign(data.begin(), data.end());
                            })
                            .status());
  const auto section = [&](RecordKind kind, std::size_t statistic) {
    const auto found = sections.find({kind, statistic});
    return found == sections.end() ? ByteSpan() : ByteSpan(found->second);
  };
  if (!DecodeSamples(*directory, section, fingerprints)) {
    return DamagedBlock(database);
  }
  std::vector<NumberedFrame> frames;
  for (std::size_t f = 0; f < directory->frames.size(); ++f) {
    frames.push_back({directory->sequences[f], std::move(directory->frames[f])});
  }
  return frames;
}

}  // namespace neuraldbg::store
