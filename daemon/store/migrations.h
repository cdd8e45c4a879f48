// Brings a database to the schema of this release, forward only.
#pragma once

#include "absl/status/status.h"
#include "daemon/store/sqlite_connection.h"

namespace neuraldbg::store {

// The schema that this release writes; kept in SQLite's user_version.
inline constexpr std::int64_t kSchemaVersion = 2;

// Creates an empty database or migrates an older one, in one transaction. FAILED_PRECONDITION: written by a newer
// release; DATA_LOSS: not a database of ours.
absl::Status MigrateSchema(SqliteConnection& database);

// For readers: the schema must be this release's, since a reader cannot migrate.
absl::Status CheckSchema(SqliteConnection& database);

}  // namespace neuraldbg::store
