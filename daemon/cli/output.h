// Where a verb's answer goes: a table for people, JSON for programs, to standard output or a file.
#pragma once

#include <cstddef>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/cli/arguments.h"
#include "google/protobuf/message.h"

namespace neuraldbg {

// Columns of text. The widest column that is not a number gives way when the table is wider than the terminal.
class Table {
 public:
  struct Column {
    std::string title;
    bool number = false;  // right-aligned, never cut
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  // `width` 0: as wide as it gets.
  std::string Render(std::size_t width) const;

 private:
  std::vector<std::size_t> Widths(std::size_t width) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

class Output {
 public:
  static absl::StatusOr<Output> Open(const Arguments& arguments);

  OutputFormat format() const { return format_; }
  std::size_t width() const { return width_; }  // 0: not a terminal
  bool color() const { return color_; }         // a terminal, and NO_COLOR is not set
  bool terminal() const { return width_ != 0; }

  void Write(const std::string& text) const;
  void WriteTable(const Table& table) const { Write(table.Render(width_)); }
  // json: the message as one object. jsonl: one line per element of its first repeated message field, or the whole
  // message in one line where it has none.
  void WriteMessage(const google::protobuf::Message& message, bool is_list) const;
  absl::Status Finish();

 private:
  Output() = default;

  OutputFormat format_ = OutputFormat::kTable;
  std::size_t width_ = 0;
  bool color_ = false;
  std::string path_;
  std::unique_ptr<std::ofstream> file_;
};

}  // namespace neuraldbg
