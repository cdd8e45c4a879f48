#include "daemon/store/diagnosis_rows.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/store/byte_stream.h"
#include "daemon/store/diagnosis_fields.h"
#include "daemon/store/row_fields.h"
#include "daemon/store/status_macros.h"

namespace neuraldbg::store {
namespace {

// Diagnoses kept per run besides the current one; a verdict that flips for weeks must not fill the disk.
constexpr int kHistoryPerRun = 256;

absl::Status WriteHypothesis(SqliteConnection& database, std::int64_t diagnosis, std::size_t position,
                             const Hypothesis& hypothesis) {
  FieldBinder row(database.Use("INSERT INTO hypotheses VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"));
  row(diagnosis, position);
  HypothesisFields(row, hypothesis);
  STORE_RETURN_IF_ERROR(row.Run());
  for (std::size_t i = 0; i < hypothesis.evidence.size(); ++i) {
    FieldBinder item(database.Use("INSERT INTO evidence VALUES (?,?,?,?,?,?,?,?,?,?)"));
    item(diagnosis, position, i);
    EvidenceFields(item, hypothesis.evidence[i]);
    STORE_RETURN_IF_ERROR(item.Run());
  }
  for (std::size_t i = 0; i < hypothesis.chain.size(); ++i) {
    FieldBinder item(database.Use("INSERT INTO chain_links VALUES (?,?,?,?,?,?,?,?)"));
    item(diagnosis, position, i);
    ChainFields(item, hypothesis.chain[i]);
    STORE_RETURN_IF_ERROR(item.Run());
  }
  for (std::size_t i = 0; i < hypothesis.equivalents.size(); ++i) {
    FieldBinder item(database.Use("INSERT INTO equivalents VALUES (?,?,?,?)"));
    item(diagnosis, position, i, hypothesis.equivalents[i]);
    STORE_RETURN_IF_ERROR(item.Run());
  }
  return absl::OkStatus();
}

// Reads the rows of one list of a diagnosis (and hypothesis), in order.
template <typename T, typename Fields>
absl::Status ReadList(SqliteStatement& statement, std::vector<T>& out, Fields fields) {
  return statement.ForEach([&](const SqliteRow& row) {
    T item;
    FieldLoader loader(row, 0);
    fields(loader, item);
    STORE_RETURN_IF_ERROR(loader.status());
    out.push_back(std::move(item));
    return absl::OkStatus();
  });
}

absl::Status ReadHypothesisLists(SqliteConnection& database, std::int64_t diagnosis, std::size_t position,
                                 Hypothesis& hypothesis) {
  STORE_RETURN_IF_ERROR(
      ReadList(database
                   .Use("SELECT site, step, statistic, observed, expected_low, expected_high, note FROM evidence "
                        "WHERE diagnosis_id=? AND hypothesis=? ORDER BY position")
                   .Bind(diagnosis)
                   .Bind(position),
               hypothesis.evidence, [](FieldLoader& io, Evidence& item) { EvidenceFields(io, item); }));
  STORE_RETURN_IF_ERROR(ReadList(database
                                     .Use("SELECT site, step, phase, share, note FROM chain_links "
                                          "WHERE diagnosis_id=? AND hypothesis=? ORDER BY position")
                                     .Bind(diagnosis)
                                     .Bind(position),
                                 hypothesis.chain, [](FieldLoader& io, ChainLink& item) { ChainFields(io, item); }));
  return ReadList(database.Use("SELECT text FROM equivalents WHERE diagnosis_id=? AND hypothesis=? ORDER BY position")
                      .Bind(diagnosis)
                      .Bind(position),
                  hypothesis.equivalents, [](FieldLoader& io, std::string& item) { io(item); });
}

absl::Status RemoveDiagnosis(SqliteConnection& database, std::int64_t id) {
  return database.Use("DELETE FROM diagnoses WHERE id=?").Bind(id).Run();  // the rest follows by ON DELETE CASCADE
}

absl::Status TrimHistory(SqliteConnection& database, std::uint64_t run_id) {
  return database
      .Use(
          "DELETE FROM diagnoses WHERE run_id=?1 AND id IN "
          "(SELECT id FROM diagnoses WHERE run_id=?1 ORDER BY id DESC LIMIT -1 OFFSET ?2)")
      .Bind(run_id)
      .Bind(kHistoryPerRun + 1)
      .Run();
}

}  // namespace

std::string FindingsOf(const Diagnosis& diagnosis) {
  std::string findings(VerdictName(diagnosis.verdict));
  for (const Hypothesis& h : diagnosis.hypotheses) {
    absl::StrAppend(&findings, "; ", h.incident, " ", std::string(HypothesisKindName(h.kind)), " ", h.module, " site ",
                    h.site, " rank ", h.rank, " step ", h.step);
  }
  return findings;
}

absl::StatusOr<std::string> CurrentFindings(SqliteConnection& database, std::uint64_t run_id) {
  std::string findings;
  STORE_RETURN_IF_ERROR(database.Use("SELECT findings FROM diagnoses WHERE run_id=? ORDER BY id DESC LIMIT 1")
                            .Bind(run_id)
                            .First([&](const SqliteRow& row) { findings = row.Text(0); })
                            .status());
  return findings;
}

absl::Status WriteDiagnosis(SqliteConnection& database, std::uint64_t run_id, const Diagnosis& diagnosis,
                            std::uint64_t now_ns) {
  const std::string findings = FindingsOf(diagnosis);
  std::int64_t replaced = 0;
  STORE_RETURN_IF_ERROR(database.Use("SELECT id, findings FROM diagnoses WHERE run_id=? ORDER BY id DESC LIMIT 1")
                            .Bind(run_id)
                            .First([&](const SqliteRow& row) { replaced = row.Text(1) == findings ? row.Int(0) : 0; })
                            .status());
  if (replaced != 0) {
    STORE_RETURN_IF_ERROR(RemoveDiagnosis(database, replaced));
  }
  Bytes ranks;
  for (ByteWriter writer(ranks); const std::uint32_t rank : diagnosis.ranks_seen) {
    writer.Varint(rank);
  }
  Bytes through;
  for (ByteWriter writer(through); const std::uint64_t step : diagnosis.through_steps) {
    writer.Varint(step);
  }
  STORE_RETURN_IF_ERROR(database.Use("INSERT INTO diagnoses VALUES (NULL,?,?,?,?,?,?,?,?)")
                            .Bind(run_id)
                            .Bind(findings)
                            .Bind(now_ns)
                            .Bind(diagnosis.verdict)
                            .Bind(diagnosis.warm)
                            .Bind(diagnosis.steps_seen)
                            .Bind(ranks)
                            .Bind(through)
                            .Run());
  const std::int64_t id = database.last_insert_id();
  for (std::size_t i = 0; i < diagnosis.hypotheses.size(); ++i) {
    STORE_RETURN_IF_ERROR(WriteHypothesis(database, id, i, diagnosis.hypotheses[i]));
  }
  for (std::size_t i = 0; i < diagnosis.notices.size(); ++i) {
    FieldBinder item(database.Use("INSERT INTO notices VALUES (?,?,?,?,?,?,?)"));
    item(id, i);
    NoticeFields(item, diagnosis.notices[i]);
    STORE_RETURN_IF_ERROR(item.Run());
  }
  for (std::size_t i = 0; i < diagnosis.blind_spots.size(); ++i) {
    FieldBinder item(database.Use("INSERT INTO blind_spots VALUES (?,?,?,?,?,?)"));
    item(id, i);
    BlindSpotFields(item, diagnosis.blind_spots[i]);
    STORE_RETURN_IF_ERROR(item.Run());
  }
  return TrimHistory(database, run_id);
}

absl::StatusOr<Diagnosis> ReadDiagnosis(SqliteConnection& database, std::uint64_t run_id) {
  Diagnosis diagnosis;
  std::int64_t id = 0;
  absl::Status loaded;
  STORE_ASSIGN_OR_RETURN(const bool found,
                         database
                             .Use("SELECT id, verdict, warm, steps_seen, ranks_seen, through_steps FROM diagnoses "
                                  "WHERE run_id=? ORDER BY id DESC LIMIT 1")
                             .Bind(run_id)
                             .First([&](const SqliteRow& row) {
                               FieldLoader io(row, 0);
                               io(id);
                               io.Enum(diagnosis.verdict, kVerdictCount);
                               io(diagnosis.warm, diagnosis.steps_seen);
                               for (ByteReader ranks(row.Blob(4)); ranks.ok() && ranks.remaining() > 0;) {
                                 diagnosis.ranks_seen.push_back(static_cast<std::uint32_t>(ranks.Varint()));
                               }
                               for (ByteReader steps(row.Blob(5)); steps.ok() && steps.remaining() > 0;) {
                                 diagnosis.through_steps.push_back(steps.Varint());
                               }
                               loaded = io.status();
                             }));
  if (!found) {
    return absl::NotFoundError("The run has no diagnosis yet.");
  }
  STORE_RETURN_IF_ERROR(loaded);
  STORE_RETURN_IF_ERROR(ReadList(
      database
          .Use("SELECT incident, kind, module, site, rank, step, detected_at_step, phase, confidence, summary, "
               "remedy FROM hypotheses WHERE diagnosis_id=? ORDER BY position")
          .Bind(id),
      diagnosis.hypotheses, [](FieldLoader& io, Hypothesis& item) { HypothesisFields(io, item); }));
  for (std::size_t i = 0; i < diagnosis.hypotheses.size(); ++i) {
    STORE_RETURN_IF_ERROR(ReadHypothesisLists(database, id, i, diagnosis.hypotheses[i]));
  }
  STORE_RETURN_IF_ERROR(
      ReadList(database.Use("SELECT step, rank, kind, module, text FROM notices WHERE diagnosis_id=? ORDER BY position")
                   .Bind(id),
               diagnosis.notices, [](FieldLoader& io, Notice& item) { NoticeFields(io, item); }));
  STORE_RETURN_IF_ERROR(ReadList(
      database.Use("SELECT site, rank, step, text FROM blind_spots WHERE diagnosis_id=? ORDER BY position").Bind(id),
      diagnosis.blind_spots, [](FieldLoader& io, BlindSpot& item) { BlindSpotFields(io, item); }));
  return diagnosis;
}

absl::Status WriteTransition(SqliteConnection& database, std::uint64_t run_id, const Transition& transition) {
  // The engine is a function of the frames: a transition with a stored id is the stored one, emitted again by a replay.
  FieldBinder row(database.Use("INSERT OR IGNORE INTO transitions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"));
  row(run_id);
  TransitionFields(row, transition);
  return row.Run();
}

absl::StatusOr<std::vector<Transition>> ReadTransitions(SqliteConnection& database, std::uint64_t run_id,
                                                        std::uint64_t after_id, std::uint32_t limit) {
  std::vector<Transition> transitions;
  const auto after = std::min<std::uint64_t>(after_id, std::numeric_limits<std::int64_t>::max());
  STORE_RETURN_IF_ERROR(ReadList(
      database
          .Use("SELECT id, step, rank, incarnation, site, phase, statistic, from_regime, to_regime, value, "
               "expected_low, expected_high, severity FROM transitions WHERE run_id=? AND id>? ORDER BY id LIMIT ?")
          .Bind(run_id)
          .Bind(after)
          .Bind(limit),
      transitions, [](FieldLoader& io, Transition& item) { TransitionFields(io, item); }));
  return transitions;
}

}  // namespace neuraldbg::store
