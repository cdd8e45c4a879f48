#include "daemon/store/migrations.h"

#include <array>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "daemon/store/schema.h"
#include "daemon/store/status_macros.h"

namespace neuraldbg::store {
namespace {

// "NDBG" in SQLite's application_id: tells our file from any other SQLite database.
constexpr std::int64_t kApplicationId = 0x4e444247;

// Element i leads from version i + 1 to version i + 2. Never edit one that was released: schema.sql always holds the
// newest definition, and tests/daemon/store compares both ways of getting there.
constexpr std::array<std::string_view, 1> kMigrations{
    "ALTER TABLE diagnoses ADD COLUMN through_steps BLOB NOT NULL DEFAULT x''",
};
static_assert(kMigrations.size() + 1 == kSchemaVersion);

struct Identity {
  std::int64_t application = 0, version = 0, tables = 0;
};

absl::StatusOr<Identity> ReadIdentity(SqliteConnection& database) {
  Identity identity;
  STORE_ASSIGN_OR_RETURN(identity.application, database.QueryInt("PRAGMA application_id"));
  STORE_ASSIGN_OR_RETURN(identity.version, database.QueryInt("PRAGMA user_version"));
  STORE_ASSIGN_OR_RETURN(identity.tables, database.QueryInt("SELECT count(*) FROM sqlite_master"));
  const bool empty = identity.tables == 0 && identity.version == 0;
  if (!empty && identity.application != kApplicationId) {
    return absl::DataLossError(absl::StrCat(database.path(), " is a database of another program; move it away."));
  }
  if (identity.version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(database.path(), " was written by a newer release (schema ",
                                                      identity.version, ", this release knows ", kSchemaVersion,
                                                      "); use that release or another data directory."));
  }
  return identity;
}

}  // namespace

absl::Status MigrateSchema(SqliteConnection& database) {
  STORE_ASSIGN_OR_RETURN(const Identity before, ReadIdentity(database));
  if (before.version == kSchemaVersion) {
    return absl::OkStatus();
  }
  SqliteTransaction transaction(database, SqliteTransaction::Kind::kWrite);
  STORE_RETURN_IF_ERROR(transaction.begun());
  if (before.version == 0) {
    STORE_RETURN_IF_ERROR(database.Execute(kSchema));
    STORE_RETURN_IF_ERROR(database.Execute(absl::StrCat("PRAGMA application_id=", kApplicationId)));
  } else {
    for (std::size_t i = static_cast<std::size_t>(before.version) - 1; i < kMigrations.size(); ++i) {
      STORE_RETURN_IF_ERROR(database.Execute(std::string(kMigrations[i])));
    }
  }
  STORE_RETURN_IF_ERROR(database.Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion)));
  return transaction.Commit();
}

absl::Status CheckSchema(SqliteConnection& database) {
  STORE_ASSIGN_OR_RETURN(const Identity identity, ReadIdentity(database));
  if (identity.version != kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(database.path(), " has schema ", identity.version,
                                                      "; start neuraldbgd once to bring it to ", kSchemaVersion, "."));
  }
  return absl::OkStatus();
}

}  // namespace neuraldbg::store
