#include "daemon/store/store_writer.h"

#include <chrono>
#include <map>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/store/block_rows.h"
#include "daemon/store/byte_stream.h"
#include "daemon/store/diagnosis_rows.h"
#include "daemon/store/frame_codec.h"
#include "daemon/store/status_macros.h"
#include "daemon/store/store_queries.h"

namespace neuraldbg::store {
namespace {

std::uint64_t NowRealtimeNs() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

// FNV-1a 64: only to tell announced changes apart within one rank.
std::uint64_t Hash(ByteSpan bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

std::uint64_t SubjectOf(const ManifestEntry& entry, ByteSpan body) {
  if (const auto* site = std::get_if<SiteEntry>(&entry)) {
    return site->id;
  }
  if (const auto* edge = std::get_if<EdgeEntry>(&entry)) {
    return static_cast<std::uint64_t>(edge->producer) << 32 | edge->consumer;
  }
  if (const auto* sink = std::get_if<SinkEntry>(&entry)) {
    return sink->site;
  }
  if (const auto* init = std::get_if<ParameterInitEntry>(&entry)) {
    return init->site;
  }
  return std::holds_alternative<MarkEntry>(entry) ? Hash(body) : 0;
}

ByteSpan AsBytes(const SegmentUuid& uuid) { return std::as_bytes(std::span(uuid)); }

}  // namespace

struct StoreWriter::Target {
  RankProgress progress;
  std::uint64_t frame_sequence = 0;  // of the run
};

absl::StatusOr<std::uint64_t> StoreWriter::AdoptRun(std::uint32_t owner_uid, const std::string& name,
                                                    const std::string& launch, std::uint32_t world_size,
                                                    const std::string& framework) {
  SqliteTransaction transaction(database_, SqliteTransaction::Kind::kWrite);
  STORE_RETURN_IF_ERROR(transaction.begun());
  const std::uint64_t now = NowRealtimeNs();
  // Ordinals count over all owners of a name, so that a display name means one run.
  STORE_RETURN_IF_ERROR(
      database_
          .Use("INSERT INTO runs SELECT NULL, ?1, ?2, ?3, "
               "1 + coalesce((SELECT max(ordinal) FROM runs WHERE name=?2), 0), ?4, ?5, ?6, ?6, ?7, 0 "
               "WHERE NOT EXISTS (SELECT 1 FROM runs WHERE owner_uid=?1 AND name=?2 AND launch=?3)")
          .Bind(owner_uid)
          .Bind(name)
          .Bind(launch)
          .Bind(RunState::kRunning)
          .Bind(world_size)
          .Bind(now)
          .Bind(framework)
          .Run());
  STORE_RETURN_IF_ERROR(
      database_
          .Use("UPDATE runs SET world_size=max(world_size, ?4), framework=iif(framework='', ?5, framework) "
               "WHERE owner_uid=?1 AND name=?2 AND launch=?3")
          .Bind(owner_uid)
          .Bind(name)
          .Bind(launch)
          .Bind(world_size)
          .Bind(framework)
          .Run());
  std::uint64_t id = 0;
  STORE_RETURN_IF_ERROR(database_.Use("SELECT id FROM runs WHERE owner_uid=? AND name=? AND launch=?")
                            .Bind(owner_uid)
                            .Bind(name)
                            .Bind(launch)
                            .First([&](const SqliteRow& row) { id = row.Unsigned<std::uint64_t>(0); })
                            .status());
  STORE_RETURN_IF_ERROR(transaction.Commit());
  return id;
}

absl::Status StoreWriter::SetRunState(std::uint64_t run_id, RunState state) {
  return database_.Use("UPDATE runs SET state=?, updated_ns=? WHERE id=?")
      .Bind(state)
      .Bind(NowRealtimeNs())
      .Bind(run_id)
      .Run();
}

absl::Status StoreWriter::Together(const std::function<absl::Status()>& changes) {
  STORE_RETURN_IF_ERROR(SetFullSynchronous(true));
  SqliteTransaction transaction(database_, SqliteTransaction::Kind::kWrite);
  STORE_RETURN_IF_ERROR(transaction.begun());
  together_ = true;
  const absl::Status changed = changes();
  together_ = false;
  STORE_RETURN_IF_ERROR(changed);
  return transaction.Commit();
}

// A kill of the process loses nothing either way: a commit is in the kernel's hands when it returns. Only a power
// failure can take the newest commits of synchronous=NORMAL, and it takes the rings in shared memory with them, so
// series have nothing to be consistent with. A transition or a changed verdict may already have been told to somebody:
// those commits are synced to the disk before they count (FULL).
absl::Status StoreWriter::SetDurability(const Commit& commit) {
  if (together_) {
    return absl::OkStatus();
  }
  bool full = !commit.transitions.empty();
  if (!full && commit.diagnosis) {
    STORE_ASSIGN_OR_RETURN(const std::string current, CurrentFindings(database_, commit.rank.key.run_id));
    full = current != FindingsOf(*commit.diagnosis);
  }
  return SetFullSynchronous(full);
}

// Not within a transaction: SQLite would refuse.
absl::Status StoreWriter::SetFullSynchronous(bool full) {
  if (full != full_synchronous_) {
    STORE_RETURN_IF_ERROR(database_.Execute(full ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL"));
    full_synchronous_ = full;
  }
  return absl::OkStatus();
}

absl::Status StoreWriter::Apply(const Commit& commit) {
  for (const StepFrame& frame : commit.frames) {
    if (!IsEncodable(frame)) {
      return absl::InvalidArgumentError("A frame holds a sample of an unknown kind or phase.");
    }
  }
  const std::uint64_t run_id = commit.rank.key.run_id;
  const std::uint64_t now = NowRealtimeNs();
  STORE_RETURN_IF_ERROR(SetDurability(commit));
  SqliteTransaction transaction(database_, SqliteTransaction::Kind::kWrite);
  STORE_RETURN_IF_ERROR(transaction.begun());
  STORE_ASSIGN_OR_RETURN(Target target, WriteRank(commit));
  STORE_RETURN_IF_ERROR(WriteSegment(commit, target));
  STORE_RETURN_IF_ERROR(WriteManifest(commit, target));
  STORE_RETURN_IF_ERROR(WriteFrames(commit, target));
  STORE_RETURN_IF_ERROR(WriteSiteTotals(commit, target));
  for (const Transition& transition : commit.transitions) {
    STORE_RETURN_IF_ERROR(WriteTransition(database_, run_id, transition));
  }
  if (commit.diagnosis) {
    STORE_RETURN_IF_ERROR(WriteDiagnosis(database_, run_id, *commit.diagnosis, now));
  }
  if (!commit.engine_snapshot.empty()) {
    STORE_RETURN_IF_ERROR(database_.Use("INSERT OR REPLACE INTO engine_snapshots VALUES (?,?,?)")
                              .Bind(run_id)
                              .Bind(target.frame_sequence)
                              .Bind(commit.engine_snapshot)
                              .Run());
  }
  STORE_RETURN_IF_ERROR(WriteRun(commit, target, now));
  return transaction.Commit();
}

absl::StatusOr<StoreWriter::Target> StoreWriter::WriteRank(const Commit& commit) {
  const StoredRank& r = commit.rank;
  Target target;
  STORE_ASSIGN_OR_RETURN(
      const bool known,
      database_.Use("SELECT frame_sequence FROM runs WHERE id=?").Bind(r.key.run_id).First([&](const SqliteRow& row) {
        target.frame_sequence = row.Unsigned<std::uint64_t>(0);
      }));
  if (!known) {
    return absl::NotFoundError(absl::StrCat("There is no run ", r.key.run_id, " to commit to."));
  }
  STORE_RETURN_IF_ERROR(
      database_
          .Use("INSERT INTO ranks VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?,?,0,0,0,0,x'') "
               "ON CONFLICT (run_id, rank, incarnation) DO UPDATE SET host=excluded.host, pid=excluded.pid, "
               "state=excluded.state, last_step=excluded.last_step, last_site=excluded.last_site, "
               "records_produced=excluded.records_produced, records_received=excluded.records_received, "
               "records_dropped=excluded.records_dropped, segment_uuid=excluded.segment_uuid")
          .Bind(r.key.run_id)
          .Bind(r.key.rank)
          .Bind(r.key.incarnation)
          .Bind(r.host)
          .Bind(r.pid)
          .Bind(r.state)
          .Bind(StepColumn(r.last_step))
          .Bind(r.last_site)
          .Bind(r.records_produced)
          .Bind(r.records_received)
          .Bind(r.records_dropped)
          .Bind(AsBytes(r.segment_uuid))
          .Run());
  STORE_RETURN_IF_ERROR(database_
                            .Use("SELECT id, frames, complete_frames, blocked_frames, pending_bytes FROM ranks "
                                 "WHERE run_id=? AND rank=? AND incarnation=?")
                            .Bind(r.key.run_id)
                            .Bind(r.key.rank)
                            .Bind(r.key.incarnation)
                            .First([&](const SqliteRow& row) {
                              target.progress = {row.Int(0), row.Unsigned<std::uint64_t>(1),
                                                 row.Unsigned<std::uint64_t>(2), row.Unsigned<std::uint64_t>(3),
                                                 row.Unsigned<std::uint64_t>(4)};
                            })
                            .status());
  return target;
}

absl::Status StoreWriter::WriteSegment(const Commit& commit, const Target& target) {
  if (commit.rank.segment_uuid == SegmentUuid{}) {
    return absl::OkStatus();
  }
  Bytes heads;
  for (ByteWriter writer(heads); const LaneCheckpoint& lane : commit.lane_heads) {
    writer.Fixed(lane.head);
    writer.Fixed(lane.next_attempt);
  }
  return database_.Use("INSERT OR REPLACE INTO segments VALUES (?,?,?,?)")
      .Bind(AsBytes(commit.rank.segment_uuid))
      .Bind(target.progress.rank_id)
      .Bind(heads)
      .Bind(commit.assembler_state)
      .Run();
}

absl::Status StoreWriter::WriteManifest(const Commit& commit, const Target& target) {
  Bytes body;
  for (const ManifestEntry& entry : commit.manifest) {
    body.clear();
    EncodeManifestEntry(entry, body);
    const std::uint16_t type = ManifestEntryType(entry);
    const std::uint64_t subject = SubjectOf(entry, body);
    bool repeated = false;
    STORE_RETURN_IF_ERROR(database_
                              .Use("SELECT body FROM manifest_entries WHERE rank_id=? AND type=? AND subject=? "
                                   "ORDER BY id DESC LIMIT 1")
                              .Bind(target.progress.rank_id)
                              .Bind(type)
                              .Bind(subject)
                              .First([&](const SqliteRow& row) {
                                const ByteSpan stored = row.Blob(0);
                                repeated = std::equal(stored.begin(), stored.end(), body.begin(), body.end());
                              })
                              .status());
    if (!repeated) {
      STORE_RETURN_IF_ERROR(database_.Use("INSERT INTO manifest_entries VALUES (NULL,?,?,?,?)")
                                .Bind(target.progress.rank_id)
                                .Bind(type)
                                .Bind(subject)
                                .Bind(body)
                                .Run());
    }
  }
  return absl::OkStatus();
}

absl::Status StoreWriter::WriteFrames(const Commit& commit, Target& target) {
  Bytes data;
  for (const StepFrame& frame : commit.frames) {
    data.clear();
    EncodeFrame(frame, data);
    STORE_RETURN_IF_ERROR(database_.Use("INSERT INTO pending_frames VALUES (?,?,?,?)")
                              .Bind(target.progress.rank_id)
                              .Bind(++target.frame_sequence)
                              .Bind(StepColumn(frame.step))
                              .Bind(data)
                              .Run());
    ++target.progress.frames;
    target.progress.complete_frames += EndedByOptimizer(frame) ? 1 : 0;
    target.progress.pending_bytes += data.size();
    STORE_RETURN_IF_ERROR(CloseBlockIfFull(database_, target.progress));
  }
  return absl::OkStatus();
}

absl::Status StoreWriter::WriteSiteTotals(const Commit& commit, const Target& target) {
  if (commit.site_totals.empty()) {
    return absl::OkStatus();
  }
  // A commit may carry only the sites that changed: the others keep what is stored.
  std::map<std::uint32_t, SiteSummary> merged;
  STORE_RETURN_IF_ERROR(database_.Use("SELECT site_totals FROM ranks WHERE id=?")
                            .Bind(target.progress.rank_id)
                            .First([&](const SqliteRow& row) {
                              for (const SiteSummary& total : DecodeSiteTotals(row.Blob(0))) {
                                merged[total.site] = total;
                              }
                            })
                            .status());
  for (const SiteSummary& total : commit.site_totals) {
    merged[total.site] = total;
  }
  std::vector<SiteSummary> totals;
  totals.reserve(merged.size());
  for (const auto& [site, total] : merged) {
    totals.push_back(total);
  }
  const Bytes encoded = EncodeSiteTotals(totals);
  return database_.Use("UPDATE ranks SET site_totals=? WHERE id=?").Bind(encoded).Bind(target.progress.rank_id).Run();
}

absl::Status StoreWriter::WriteRun(const Commit& commit, const Target& target, std::uint64_t now_ns) {
  if (!commit.frames.empty()) {
    STORE_RETURN_IF_ERROR(
        database_.Use("UPDATE ranks SET frames=?, complete_frames=?, blocked_frames=?, pending_bytes=? WHERE id=?")
            .Bind(target.progress.frames)
            .Bind(target.progress.complete_frames)
            .Bind(target.progress.blocked_frames)
            .Bind(target.progress.pending_bytes)
            .Bind(target.progress.rank_id)
            .Run());
  }
  // A run with a running rank runs, whatever was said of it before (a restart of a launch that died).
  const bool running = commit.rank.state == neuraldbg::RankState::kRunning;
  return database_.Use("UPDATE runs SET updated_ns=?1, frame_sequence=?2, state=iif(?3, ?4, state) WHERE id=?5")
      .Bind(now_ns)
      .Bind(target.frame_sequence)
      .Bind(running)
      .Bind(RunState::kRunning)
      .Bind(commit.rank.key.run_id)
      .Run();
}

}  // namespace neuraldbg::store
