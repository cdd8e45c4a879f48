#include "daemon/store/store_queries.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "daemon/store/byte_stream.h"
#include "daemon/store/diagnosis_rows.h"
#include "daemon/store/row_fields.h"
#include "daemon/store/status_macros.h"
#include "daemon/store/topology_builder.h"

namespace neuraldbg::store {
namespace {

// last_step and steps_seen come from the ranks: the work of one rank over its incarnations, the greatest of all ranks.
#define RUN_COLUMNS                                                                                     \
  "SELECT id, owner_uid, name, launch, ordinal, state, world_size, created_ns, updated_ns, framework, " \
  "coalesce((SELECT max(last_step) FROM ranks WHERE run_id=runs.id), 0), "                              \
  "coalesce((SELECT max(n) FROM (SELECT sum(complete_frames) AS n FROM ranks WHERE run_id=runs.id "     \
  "GROUP BY rank)), 0) FROM runs "

// Of a damaged row, any number may come; what switches over the enum must not see it.
template <typename State>
State StateOf(const SqliteRow& row, int column) {
  return static_cast<State>(std::clamp<std::int64_t>(row.Int(column), 0, static_cast<std::int64_t>(State::kDied)));
}

StoredRun RunOf(const SqliteRow& row) {
  StoredRun run;
  run.id = row.Unsigned<std::uint64_t>(0);
  run.owner_uid = row.Unsigned<std::uint32_t>(1);
  run.name = row.Text(2);
  run.launch = row.Text(3);
  const std::int64_t ordinal = row.Int(4);
  run.display_name = ordinal == 1 ? run.name : absl::StrCat(run.name, "#", ordinal);
  run.state = StateOf<RunState>(row, 5);
  run.world_size = row.Unsigned<std::uint32_t>(6);
  run.created_realtime_ns = row.Unsigned<std::uint64_t>(7);
  run.updated_realtime_ns = row.Unsigned<std::uint64_t>(8);
  run.framework = row.Text(9);
  run.last_step = row.Unsigned<std::uint64_t>(10);
  run.steps_seen = row.Unsigned<std::uint64_t>(11);
  return run;
}

StoredRank RankOf(const SqliteRow& row, std::uint64_t run_id) {
  StoredRank rank;
  rank.key = {run_id, row.Unsigned<std::uint32_t>(0), row.Unsigned<std::uint32_t>(1)};
  rank.host = row.Text(2);
  rank.pid = row.Unsigned<std::uint32_t>(3);
  rank.state = StateOf<RankState>(row, 4);
  rank.last_step = row.Unsigned<std::uint64_t>(5);
  rank.last_site = row.Unsigned<std::uint32_t>(6);
  rank.records_produced = row.Unsigned<std::uint64_t>(7);
  rank.records_received = row.Unsigned<std::uint64_t>(8);
  rank.records_dropped = row.Unsigned<std::uint64_t>(9);
  const auto uuid = row.Blob(10);
  if (uuid.size() == rank.segment_uuid.size()) {
    std::copy_n(reinterpret_cast<const std::uint8_t*>(uuid.data()), uuid.size(), rank.segment_uuid.begin());
  }
  return rank;
}

// "name#3" names the third launch; ordinal 0 stands for the newest.
std::pair<std::string, std::int64_t> SplitDisplayName(const std::string& display_name) {
  const std::size_t mark = display_name.rfind('#');
  if (mark == std::string::npos || mark + 1 == display_name.size() || display_name.size() - mark > 10) {
    return {display_name, 0};
  }
  std::int64_t ordinal = 0;
  for (const char c : display_name.substr(mark + 1)) {
    if (c < '0' || c > '9') {
      return {display_name, 0};
    }
    ordinal = ordinal * 10 + (c - '0');
  }
  return {display_name.substr(0, mark), ordinal == 0 ? -1 : ordinal};
}

}  // namespace

std::int64_t StepColumn(std::uint64_t step) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(step, std::numeric_limits<std::int64_t>::max()));
}

std::vector<std::byte> EncodeSiteTotals(const std::vector<SiteSummary>& totals) {
  Bytes bytes;
  ByteWriter writer(bytes);
  std::uint32_t previous = 0;
  for (const SiteSummary& total : totals) {
    writer.Difference(total.site, previous);
    writer.Varint(total.records);
    writer.Varint(total.last_step);
    previous = total.site;
  }
  return bytes;
}

std::vector<SiteSummary> DecodeSiteTotals(std::span<const std::byte> bytes) {
  std::vector<SiteSummary> totals;
  std::uint32_t previous = 0;
  for (ByteReader reader(bytes); reader.ok() && reader.remaining() > 0;) {
    SiteSummary total;
    total.site = static_cast<std::uint32_t>(reader.Difference(previous));
    total.records = reader.Varint();
    total.last_step = reader.Varint();
    previous = total.site;
    if (reader.ok()) {
      totals.push_back(total);
    }
  }
  return totals;
}

absl::StatusOr<StoredRun> StoreQueries::OneRun(SqliteStatement& statement, const std::string& missing) {
  StoredRun run;
  STORE_ASSIGN_OR_RETURN(const bool found, statement.First([&](const SqliteRow& row) { run = RunOf(row); }));
  return found ? absl::StatusOr<StoredRun>(std::move(run)) : absl::NotFoundError(missing);
}

absl::StatusOr<std::vector<StoredRun>> StoreQueries::ListRuns() {
  std::vector<StoredRun> runs;
  STORE_RETURN_IF_ERROR(database_.Use(RUN_COLUMNS "ORDER BY id DESC").ForEach([&](const SqliteRow& row) {
    runs.push_back(RunOf(row));
    return absl::OkStatus();
  }));
  return runs;
}

absl::StatusOr<StoredRun> StoreQueries::FindRun(const std::string& name) {
  if (name.empty()) {
    return OneRun(database_.Use(RUN_COLUMNS "ORDER BY id DESC LIMIT 1"), "No run has been recorded yet.");
  }
  if (const std::size_t at = name.find('@'); at != std::string::npos) {
    return OneRun(database_.Use(RUN_COLUMNS "WHERE name=? AND launch=? ORDER BY ordinal DESC LIMIT 1")
                      .Bind(name.substr(0, at))
                      .Bind(name.substr(at + 1)),
                  absl::StrCat("There is no run named ", name.substr(0, at), " of that launch."));
  }
  const auto [plain, ordinal] = SplitDisplayName(name);
  const std::string missing = absl::StrCat("There is no run named ", name, ".");
  if (ordinal == 0) {
    return OneRun(database_.Use(RUN_COLUMNS "WHERE name=? ORDER BY ordinal DESC LIMIT 1").Bind(plain), missing);
  }
  return OneRun(database_.Use(RUN_COLUMNS "WHERE name=? AND ordinal=?").Bind(plain).Bind(ordinal), missing);
}

absl::StatusOr<StoredRun> StoreQueries::GetRun(std::uint64_t run_id) {
  return OneRun(database_.Use(RUN_COLUMNS "WHERE id=?").Bind(run_id), absl::StrCat("There is no run ", run_id, "."));
}

absl::StatusOr<std::vector<StoredRank>> StoreQueries::ListRanks(std::uint64_t run_id) {
  std::vector<StoredRank> ranks;
  STORE_RETURN_IF_ERROR(database_
                            .Use("SELECT rank, incarnation, host, pid, state, last_step, last_site, records_produced, "
                                 "records_received, records_dropped, segment_uuid FROM ranks WHERE run_id=? "
                                 "ORDER BY rank, incarnation")
                            .Bind(run_id)
                            .ForEach([&](const SqliteRow& row) {
                              ranks.push_back(RankOf(row, run_id));
                              return absl::OkStatus();
                            }));
  return ranks;
}

absl::StatusOr<RankRow> StoreQueries::FindRank(const RankKey& key) {
  RankRow rank;
  rank.key = key;
  STORE_ASSIGN_OR_RETURN(
      const bool found,
      database_.Use("SELECT id, frames, blocked_frames FROM ranks WHERE run_id=? AND rank=? AND incarnation=?")
          .Bind(key.run_id)
          .Bind(key.rank)
          .Bind(key.incarnation)
          .First([&](const SqliteRow& row) {
            rank.id = row.Int(0);
            rank.frames = row.Unsigned<std::uint64_t>(1);
            rank.blocked_frames = row.Unsigned<std::uint64_t>(2);
          }));
  if (!found) {
    return absl::NotFoundError(absl::StrCat("The run has no rank ", key.rank, " (incarnation ", key.incarnation, ")."));
  }
  return rank;
}

absl::StatusOr<std::vector<RankRow>> StoreQueries::RanksOf(std::uint64_t run_id) {
  std::vector<RankRow> ranks;
  STORE_RETURN_IF_ERROR(database_
                            .Use("SELECT id, rank, incarnation, frames, blocked_frames FROM ranks WHERE run_id=? ORDER "
                                 "BY rank, incarnation")
                            .Bind(run_id)
                            .ForEach([&](const SqliteRow& row) {
                              ranks.push_back({row.Int(0),
                                               {run_id, row.Unsigned<std::uint32_t>(1), row.Unsigned<std::uint32_t>(2)},
                                               row.Unsigned<std::uint64_t>(3),
                                               row.Unsigned<std::uint64_t>(4)});
                              return absl::OkStatus();
                            }));
  return ranks;
}

absl::StatusOr<std::vector<ManifestEntry>> StoreQueries::Manifest(const RankRow& rank) {
  std::vector<ManifestEntry> manifest;
  STORE_RETURN_IF_ERROR(
      database_.Use("SELECT type, body FROM manifest_entries WHERE rank_id=? ORDER BY id")
          .Bind(rank.id)
          .ForEach([&](const SqliteRow& row) {
            Result<ManifestEntry> entry = DecodeManifestEntry(row.Unsigned<std::uint16_t>(0), row.Blob(1));
            if (!entry.ok()) {
              return absl::DataLossError(absl::StrCat(database_.path(), ": ", entry.error().message, "."));
            }
            manifest.push_back(std::move(entry).value());
            return absl::OkStatus();
          }));
  return manifest;
}

absl::StatusOr<Topology> StoreQueries::GetTopology(const RankKey& key) {
  STORE_ASSIGN_OR_RETURN(const RankRow rank, FindRank(key));
  STORE_ASSIGN_OR_RETURN(const std::vector<ManifestEntry> manifest, Manifest(rank));
  Topology topology;
  for (const ManifestEntry& entry : manifest) {
    AddToTopology(entry, topology);
  }
  return topology;
}

absl::StatusOr<std::vector<std::byte>> StoreQueries::EngineSnapshot(std::uint64_t run_id) {
  std::vector<std::byte> snapshot;
  STORE_RETURN_IF_ERROR(database_.Use("SELECT snapshot FROM engine_snapshots WHERE run_id=?")
                            .Bind(run_id)
                            .First([&](const SqliteRow& row) {
                              const auto bytes = row.Blob(0);
                              snapshot.assign(bytes.begin(), bytes.end());
                            })
                            .status());
  return snapshot;
}

absl::StatusOr<std::vector<SiteSummary>> StoreQueries::SiteTotals(const RankKey& key) {
  STORE_ASSIGN_OR_RETURN(const RankRow rank, FindRank(key));
  std::vector<SiteSummary> totals;
  STORE_RETURN_IF_ERROR(database_.Use("SELECT site_totals FROM ranks WHERE id=?")
                            .Bind(rank.id)
                            .First([&](const SqliteRow& row) { totals = DecodeSiteTotals(row.Blob(0)); })
                            .status());
  return totals;
}

absl::StatusOr<std::vector<Transition>> StoreQueries::ListTransitions(std::uint64_t run_id, std::uint64_t after_id,
                                                                      std::uint32_t limit) {
  return ReadTransitions(database_, run_id, after_id, limit);
}

absl::StatusOr<Diagnosis> StoreQueries::GetDiagnosis(std::uint64_t run_id) {
  SqliteTransaction snapshot(database_, SqliteTransaction::Kind::kRead);  // its rows must be of one moment
  STORE_RETURN_IF_ERROR(snapshot.begun());
  return ReadDiagnosis(database_, run_id);
}

}  // namespace neuraldbg::store
