// A Diagnosis as rows: one per diagnosis, hypothesis, piece of evidence, chain link, notice and blind spot, so that
// every finding can be queried with SQL.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/model/diagnosis.h"
#include "daemon/store/sqlite_connection.h"

namespace neuraldbg::store {

// Verdict, and of each hypothesis what identifies it. Two diagnoses with equal findings differ only in figures.
std::string FindingsOf(const Diagnosis& diagnosis);

// The findings of the run's newest diagnosis; empty if it has none.
absl::StatusOr<std::string> CurrentFindings(SqliteConnection& database, std::uint64_t run_id);

// Becomes the current diagnosis of the run. Replaces the newest row if the findings are the same.
absl::Status WriteDiagnosis(SqliteConnection& database, std::uint64_t run_id, const Diagnosis& diagnosis,
                            std::uint64_t now_ns);

// NOT_FOUND if the run has none yet.
absl::StatusOr<Diagnosis> ReadDiagnosis(SqliteConnection& database, std::uint64_t run_id);

absl::Status WriteTransition(SqliteConnection& database, std::uint64_t run_id, const Transition& transition);
absl::StatusOr<std::vector<Transition>> ReadTransitions(SqliteConnection& database, std::uint64_t run_id,
                                                        std::uint64_t after_id, std::uint32_t limit);

}  // namespace neuraldbg::store
