#include "daemon/cli/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/service/report.h"

namespace neuraldbg {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kTextWidthMin = 12;  // a column narrower than this says nothing
constexpr std::size_t kTerminalWidthOtherwise = 80;
constexpr const char* kEllipsis = "\u2026";

std::size_t TerminalWidth() {
  if (isatty(STDOUT_FILENO) == 0) return 0;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  std::uint32_t width = 0;
  return columns != nullptr && absl::SimpleAtoi(columns, &width) && width > 0 ? width : kTerminalWidthOtherwise;
}

// Characters, not bytes: names are UTF-8.
std::size_t Length(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// The end of a module path tells more than its beginning, so the middle is what is left out.
std::string Cut(const std::string& text, std::size_t width) {
  const std::size_t length = Length(text);
  if (length <= width) return text;
  const std::size_t head = (width - 1) / 2, tail = width - 1 - head;
  std::string begin, end;
  std::size_t position = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) ++position;
    if (position <= head) begin.push_back(c);
    if (position > length - tail) end.push_back(c);
  }
  return begin + kEllipsis + end;
}

}  // namespace

std::vector<std::size_t> Table::Widths(std::size_t width) const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(Length(column.title));
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Length(row[i]));
  }
  while (width > 0) {
    const std::size_t total = std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1));
    if (total <= width) break;
    std::size_t widest = widths.size();
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (columns_[i].number || widths[i] <= kTextWidthMin) continue;
      if (widest == widths.size() || widths[i] > widths[widest]) widest = i;
    }
    if (widest == widths.size()) break;
    --widths[widest];
  }
  return widths;
}

std::string Table::Render(std::size_t width) const {
  const std::vector<std::size_t> widths = Widths(width);
  std::string text;
  const auto append = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string cell = Cut(cells[i], widths[i]);
      const std::string padding(widths[i] - Length(cell), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", columns_[i].number ? padding : "", cell,
                      columns_[i].number ? "" : padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  append(titles);
  for (const auto& row : rows_) append(row);
  return text;
}

absl::StatusOr<Output> Output::Open(const Arguments& arguments) {
  Output output;
  output.format_ = arguments.format;
  // The file of an export is the run; what there is to say of it goes to standard output.
  if (arguments.file.empty() || arguments.verb == "export") {
    output.width_ = TerminalWidth();
    const char* no_color = std::getenv("NO_COLOR");
    output.color_ = output.width_ != 0 && (no_color == nullptr || *no_color == '\0');
    return output;
  }
  output.path_ = arguments.file;
  output.file_ = std::make_unique<std::ofstream>(arguments.file, std::ios::binary | std::ios::trunc);
  if (!*output.file_) return absl::InvalidArgumentError(absl::StrCat("--file: cannot write ", arguments.file));
  return output;
}

void Output::Write(const std::string& text) const {
  std::ostream& to = file_ ? static_cast<std::ostream&>(*file_) : std::cout;
  to << text << std::flush;  // whoever reads a stream wants each line when it happens
}

void Output::WriteMessage(const google::protobuf::Message& message, bool is_list) const {
  if (format_ == OutputFormat::kJson) return Write(ToJson(message));
  const auto* descriptor = message.GetDescriptor();
  for (int i = 0; is_list && i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (!field->is_repeated() || field->message_type() == nullptr) continue;
    const auto* reflection = message.GetReflection();
    for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
      Write(ToJson(reflection->GetRepeatedMessage(message, field, k), false) + "\n");
    }
    return;
  }
  Write(ToJson(message, false) + "\n");
}

absl::Status Output::Finish() {
  if (file_ == nullptr) {
    return std::cout.flush() ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
  }
  file_->flush();
  return *file_ ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path_));
}

}  // namespace neuraldbg
