#include "daemon/store/sqlite_connection.h"

#include <sqlite3.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/store/status_macros.h"

namespace neuraldbg::store {
namespace {

// Waiting for a lock: a reader may meet a checkpoint, or a writer that recovers after a kill. Both are short.
constexpr int kBusyTimeoutMilliseconds = 5000;

absl::Status StatusOf(sqlite3* database, int code) {
  const std::string path = database == nullptr || sqlite3_db_filename(database, "main") == nullptr
                               ? std::string("the database")
                               : std::string(sqlite3_db_filename(database, "main"));
  const bool disk_full = database != nullptr && sqlite3_system_errno(database) == ENOSPC;
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(absl::StrCat("The disk of ", path, " is full."));
    case SQLITE_IOERR:
      if (disk_full || code == SQLITE_IOERR_SHMSIZE) {
        return absl::ResourceExhaustedError(absl::StrCat("The disk of ", path, " is full."));
      }
      return absl::UnavailableError(
          absl::StrCat("Reading or writing ", path, " failed: ", sqlite3_errmsg(database), "."));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(
          absl::StrCat(path, " is damaged or no NeuralDBG database; move it away to start with an empty one."));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(absl::StrCat(path, " is locked by another process."));
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::PermissionDeniedError(absl::StrCat(path, " cannot be opened: ", sqlite3_errstr(code), "."));
    default:
      return absl::InternalError(
          absl::StrCat(path, ": ", database == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(database), "."));
  }
}

}  // namespace

std::int64_t SqliteRow::Int(int column) const { return sqlite3_column_int64(statement_, column); }

double SqliteRow::Real(int column) const {
  if (sqlite3_column_type(statement_, column) == SQLITE_BLOB) {
    double value = 0;
    if (const auto bytes = Blob(column); bytes.size() == sizeof(value)) {
      std::memcpy(&value, bytes.data(), sizeof(value));
    }
    return value;
  }
  return sqlite3_column_double(statement_, column);
}

std::string SqliteRow::Text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  return text == nullptr ? std::string()
                         : std::string(text, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column)));
}

std::span<const std::byte> SqliteRow::Blob(int column) const {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_, column));
  return {data, data == nullptr ? 0 : static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

SqliteStatement::SqliteStatement(sqlite3* database, std::string_view sql) : database_(database) {
  const int code = sqlite3_prepare_v3(database, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                                      &statement_, nullptr);
  if (code != SQLITE_OK) {
    status_ = StatusOf(database, code);
  }
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

void SqliteStatement::Reset() {
  if (prepared()) {
    sqlite3_reset(statement_);
    status_ = absl::OkStatus();
  }
  next_parameter_ = 1;
}

SqliteStatement& SqliteStatement::BindInt(std::int64_t value) {
  if (const int code = sqlite3_bind_int64(statement_, next_parameter_++, value); code != SQLITE_OK && status_.ok()) {
    status_ = StatusOf(database_, code);
  }
  return *this;
}

SqliteStatement& SqliteStatement::Bind(double value) {
  int code = SQLITE_OK;
  if (std::isnan(value)) {  // SQLite would store NULL and lose that a NaN was measured
    code = sqlite3_bind_blob(statement_, next_parameter_++, &value, sizeof(value), SQLITE_TRANSIENT);
  } else {
    code = sqlite3_bind_double(statement_, next_parameter_++, value);
  }
  if (code != SQLITE_OK && status_.ok()) {
    status_ = StatusOf(database_, code);
  }
  return *this;
}

SqliteStatement& SqliteStatement::Bind(std::string_view text) {
  const int code = sqlite3_bind_text64(statement_, next_parameter_++, text.data() == nullptr ? "" : text.data(),
                                       text.size(), SQLITE_STATIC, SQLITE_UTF8);
  if (code != SQLITE_OK && status_.ok()) {
    status_ = StatusOf(database_, code);
  }
  return *this;
}

SqliteStatement& SqliteStatement::Bind(std::span<const std::byte> blob) {
  const void* data = blob.empty() ? static_cast<const void*>("") : blob.data();
  const int code = sqlite3_bind_blob64(statement_, next_parameter_++, data, blob.size(), SQLITE_STATIC);
  if (code != SQLITE_OK && status_.ok()) {
    status_ = StatusOf(database_, code);
  }
  return *this;
}

absl::StatusOr<bool> SqliteStatement::Step() {
  STORE_RETURN_IF_ERROR(status_);
  switch (const int code = sqlite3_step(statement_); code) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      return false;
    default:
      return StatusOf(database_,
                      sqlite3_extended_errcode(database_) == SQLITE_OK ? code : sqlite3_extended_errcode(database_));
  }
}

absl::Status SqliteStatement::Run() {
  return ForEach([](const SqliteRow&) { return absl::OkStatus(); });
}

absl::Status SqliteStatement::ForEach(const std::function<absl::Status(const SqliteRow&)>& visit) {
  absl::Status result;
  while (result.ok()) {
    const absl::StatusOr<bool> row = Step();
    if (!row.ok()) {
      result = row.status();
    } else if (*row) {
      result = visit(SqliteRow(statement_));
    } else {
      break;
    }
  }
  Reset();
  return result;
}

absl::StatusOr<bool> SqliteStatement::First(const std::function<void(const SqliteRow&)>& visit) {
  const absl::StatusOr<bool> row = Step();
  if (row.ok() && *row) {
    visit(SqliteRow(statement_));
  }
  Reset();
  return row;
}

absl::StatusOr<std::unique_ptr<SqliteConnection>> SqliteConnection::Open(const std::string& path, SqliteAccess access) {
  std::unique_ptr<SqliteConnection> connection(new SqliteConnection());
  connection->path_ = path;
  int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  flags |= access == SqliteAccess::kReadWrite ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
  std::string target = path;
  if (access == SqliteAccess::kImmutable) {
    flags |= SQLITE_OPEN_URI;
    target = "file:";
    for (const char c : path) {  // the characters with a meaning of their own in a URI
      target += c == '%' ? "%25" : c == '?' ? "%3f" : c == '#' ? "%23" : std::string(1, c);
    }
    target += "?immutable=1";
  }
  const int code = sqlite3_open_v2(target.c_str(), &connection->database_, flags, nullptr);
  if (code != SQLITE_OK) {
    const absl::Status status = StatusOf(connection->database_, code);
    return absl::Status(
        status.code() == absl::StatusCode::kInternal ? absl::StatusCode::kPermissionDenied : status.code(),
        status.message());
  }
  sqlite3_busy_timeout(connection->database_, kBusyTimeoutMilliseconds);
  return connection;
}

SqliteConnection::~SqliteConnection() {
  statements_.clear();
  sqlite3_close_v2(database_);
}

absl::Status SqliteConnection::Execute(const std::string& sql) {
  const int code = sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : StatusOf(database_, code);
}

SqliteStatement& SqliteConnection::Use(std::string_view sql) {
  auto& statement = statements_[sql];
  if (statement == nullptr || !statement->prepared()) {
    statement = std::make_unique<SqliteStatement>(database_, sql);
  }
  statement->Reset();
  return *statement;
}

absl::StatusOr<std::int64_t> SqliteConnection::QueryInt(std::string_view sql) {
  std::int64_t value = 0;
  SqliteStatement statement(database_, sql);
  const absl::StatusOr<bool> found = statement.First([&](const SqliteRow& row) { value = row.Int(0); });
  STORE_RETURN_IF_ERROR(found.status());
  return value;
}

bool SqliteConnection::in_transaction() const { return sqlite3_get_autocommit(database_) == 0; }

std::int64_t SqliteConnection::last_insert_id() const { return sqlite3_last_insert_rowid(database_); }

SqliteTransaction::SqliteTransaction(SqliteConnection& connection, Kind kind)
    : connection_(connection), nested_(connection.in_transaction()) {
  begun_ = connection_.Use(nested_ ? "SAVEPOINT nested" : kind == Kind::kWrite ? "BEGIN IMMEDIATE" : "BEGIN").Run();
  open_ = begun_.ok();
}

SqliteTransaction::~SqliteTransaction() {
  if (open_) {
    // SQLite may have rolled back by itself (disk full); a second ROLLBACK then fails, harmlessly.
    if (nested_) {
      connection_.Use("ROLLBACK TO nested").Run().IgnoreError();
    }
    connection_.Use(nested_ ? "RELEASE nested" : "ROLLBACK").Run().IgnoreError();
  }
}

absl::Status SqliteTransaction::Commit() {
  STORE_RETURN_IF_ERROR(connection_.Use(nested_ ? "RELEASE nested" : "COMMIT").Run());
  open_ = false;
  return absl::OkStatus();
}

}  // namespace neuraldbg::store
