// SQLite as values that clean up after themselves: one connection, its cached statements, a transaction.
//
// Owner: one StoreReader or Store each. Not thread-safe; a connection is opened without SQLite's own mutex. Errors are
// absl::Status: RESOURCE_EXHAUSTED (disk full), DATA_LOSS (damaged file), UNAVAILABLE (locked), PERMISSION_DENIED.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace neuraldbg::store {

// The current row of a statement. Text and blobs are copied out before the next step.
class SqliteRow {
 public:
  explicit SqliteRow(sqlite3_stmt* statement) : statement_(statement) {}
  std::int64_t Int(int column) const;
  double Real(int column) const;
  std::string Text(int column) const;
  std::span<const std::byte> Blob(int column) const;  // valid until the next step

  template <typename T>
  T Unsigned(int column) const {
    return static_cast<T>(static_cast<std::uint64_t>(Int(column)));
  }

 private:
  sqlite3_stmt* statement_;
};

// A prepared statement whose parameters are bound in order. What is bound must outlive the call that runs it.
class SqliteStatement {
 public:
  SqliteStatement(sqlite3* database, std::string_view sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  template <typename T>
    requires std::is_integral_v<T> || std::is_enum_v<T>
  SqliteStatement& Bind(T value) {
    return BindInt(static_cast<std::int64_t>(value));
  }
  SqliteStatement& Bind(double value);
  SqliteStatement& Bind(std::string_view text);
  SqliteStatement& Bind(std::span<const std::byte> blob);

  absl::Status Run();  // to the end, ignoring rows
  absl::Status ForEach(const std::function<absl::Status(const SqliteRow&)>& visit);
  // Reads the first row, if there is one; returns whether there was.
  absl::StatusOr<bool> First(const std::function<void(const SqliteRow&)>& visit);

  void Reset();
  bool prepared() const { return statement_ != nullptr; }

 private:
  SqliteStatement& BindInt(std::int64_t value);
  absl::StatusOr<bool> Step();

  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int next_parameter_ = 1;
  absl::Status status_;  // of preparing and binding; reported when run
};

enum class SqliteAccess : std::uint8_t { kReadWrite, kReadOnly, kImmutable };

class SqliteConnection {
 public:
  static absl::StatusOr<std::unique_ptr<SqliteConnection>> Open(const std::string& path, SqliteAccess access);
  ~SqliteConnection();
  SqliteConnection(const SqliteConnection&) = delete;
  SqliteConnection& operator=(const SqliteConnection&) = delete;

  absl::Status Execute(const std::string& sql);  // any number of statements
  // The statement of this text, reset. Prepared once per connection: `sql` must be a literal.
  SqliteStatement& Use(std::string_view sql);
  absl::StatusOr<std::int64_t> QueryInt(std::string_view sql);
  std::int64_t last_insert_id() const;
  bool in_transaction() const;
  const std::string& path() const { return path_; }

 private:
  SqliteConnection() = default;

  std::string path_;
  sqlite3* database_ = nullptr;
  std::unordered_map<std::string_view, std::unique_ptr<SqliteStatement>> statements_;
};

// Rolled back unless committed. A failed COMMIT rolls back too, so the previous state stands. Within another
// transaction of the connection it is a part of that one: alone it can still be rolled back, and it stands only if the
// other does.
class SqliteTransaction {
 public:
  enum class Kind : std::uint8_t { kRead, kWrite };
  SqliteTransaction(SqliteConnection& connection, Kind kind);
  ~SqliteTransaction();
  SqliteTransaction(const SqliteTransaction&) = delete;
  SqliteTransaction& operator=(const SqliteTransaction&) = delete;

  const absl::Status& begun() const { return begun_; }
  absl::Status Commit();

 private:
  SqliteConnection& connection_;
  const bool nested_;
  absl::Status begun_;
  bool open_ = false;
};

}  // namespace neuraldbg::store
