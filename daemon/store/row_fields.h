// Binds the fields of a struct to a statement, or loads them from a row: the two ends of one list of fields.
#pragma once

#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "daemon/store/sqlite_connection.h"

namespace neuraldbg::store {

class FieldBinder {
 public:
  explicit FieldBinder(SqliteStatement& statement) : statement_(statement) {}

  template <typename... T>
  void operator()(const T&... values) {
    (statement_.Bind(values), ...);
  }
  template <typename T>
  void Enum(T value, std::int64_t /*count*/) {
    statement_.Bind(value);
  }
  absl::Status Run() { return statement_.Run(); }

 private:
  SqliteStatement& statement_;
};

class FieldLoader {
 public:
  FieldLoader(const SqliteRow& row, int first_column) : row_(row), column_(first_column) {}

  template <typename... T>
  void operator()(T&... values) {
    (Load(values), ...);
  }
  // A number outside the enum is a damaged file; it must not reach code that indexes tables by it.
  template <typename T>
  void Enum(T& value, std::int64_t count) {
    const std::int64_t number = row_.Int(column_++);
    if (number < 0 || number >= count) {
      status_ = absl::DataLossError("The database holds a value that this release does not know.");
      return;
    }
    value = static_cast<T>(number);
  }
  const absl::Status& status() const { return status_; }

 private:
  template <typename T>
    requires std::is_integral_v<T>
  void Load(T& value) {
    value = static_cast<T>(row_.Int(column_++));
  }
  void Load(double& value) { value = row_.Real(column_++); }
  void Load(std::string& value) { value = row_.Text(column_++); }

  const SqliteRow& row_;
  int column_;
  absl::Status status_;
};

}  // namespace neuraldbg::store
