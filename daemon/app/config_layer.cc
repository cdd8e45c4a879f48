#include "daemon/app/config_layer.h"

#include <toml++/toml.h>

#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace neuraldbg {
namespace {

template <typename T>
void Fill(std::optional<T>& value, const std::optional<T>& below) {
  if (!value) value = below;
}

// Reads the keys of one file; the first wrong one ends it.
class FileReader {
 public:
  FileReader(const std::string& path, const toml::table& table) : path_(path), table_(table) {}

  void Text(const char* key, std::optional<std::string>& out) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    if (!node->is_string()) return Fail(*node, key, "must be a string");
    out = node->as_string()->get();
  }
  void TextList(const char* key, std::optional<std::vector<std::string>>& out) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    std::vector<std::string> values;
    if (const auto* text = node->as_string()) values.push_back(text->get());
    if (const auto* list = node->as_array()) {
      for (const toml::node& item : *list) {
        if (!item.is_string()) return Fail(item, key, "must hold strings only");
        values.push_back(item.as_string()->get());
      }
    } else if (!node->is_string()) {
      return Fail(*node, key, "must be a string or a list of strings");
    }
    out = std::move(values);
  }
  void Number(const char* key, std::optional<double>& out) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    if (!node->is_number()) return Fail(*node, key, "must be a number");
    out = node->value<double>();
  }
  void UserList(const char* key, std::optional<std::vector<std::uint32_t>>& out) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    if (!node->is_array()) return Fail(*node, key, "must be a list of user ids");
    std::vector<std::uint32_t> values;
    for (const toml::node& item : *node->as_array()) {
      const std::optional<std::int64_t> value = item.value_exact<std::int64_t>();
      if (!value || *value < 0 || *value > std::numeric_limits<std::uint32_t>::max()) {
        return Fail(item, key, "must hold user ids only");
      }
      values.push_back(static_cast<std::uint32_t>(*value));
    }
    out = std::move(values);
  }

  absl::Status Finish() {
    if (!status_.ok()) return status_;
    for (const auto& [key, node] : table_) {
      bool known = false;
      for (const std::string& taken : taken_) known = known || taken == key.str();
      if (!known) Fail(node, std::string(key.str()), "is not a setting of neuraldbgd");
    }
    return status_;
  }

 private:
  const toml::node* Take(const char* key) {
    taken_.emplace_back(key);
    return status_.ok() ? table_.get(key) : nullptr;
  }
  void Fail(const toml::node& node, const std::string& key, const char* problem) {
    if (!status_.ok()) return;
    status_ =
        absl::InvalidArgumentError(absl::StrCat(path_, ":", node.source().begin.line, ": ", key, " ", problem, "."));
  }

  const std::string& path_;
  const toml::table& table_;
  std::vector<std::string> taken_;
  absl::Status status_;
};

}  // namespace

void ConfigLayer::FillFrom(const ConfigLayer& below) {
  Fill(shm_directory, below.shm_directory);
  Fill(data_directory, below.data_directory);
  Fill(http, below.http);
  Fill(role, below.role);
  Fill(host_name, below.host_name);
  Fill(group, below.group);
  Fill(tenant, below.tenant);
  Fill(token_file, below.token_file);
  Fill(log_level, below.log_level);
  Fill(grpc, below.grpc);
  Fill(nats, below.nats);
  Fill(exit_when_idle_s, below.exit_when_idle_s);
  Fill(allowed_uids, below.allowed_uids);
}

absl::StatusOr<ConfigLayer> ReadConfigFile(const std::string& path) {
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    return absl::InvalidArgumentError(
        line == 0
            ? absl::StrCat("The configuration file ", path, " cannot be read: ", std::string(error.description()), ".")
            : absl::StrCat(path, ":", line, ": ", std::string(error.description()), "."));
  }
  ConfigLayer layer;
  FileReader reader(path, table);
  reader.Text("shm_dir", layer.shm_directory);
  reader.Text("data_dir", layer.data_directory);
  reader.TextList("grpc", layer.grpc);
  reader.Text("http", layer.http);
  reader.Text("role", layer.role);
  reader.TextList("nats", layer.nats);
  reader.Text("host_name", layer.host_name);
  reader.Text("group", layer.group);
  reader.Text("tenant", layer.tenant);
  reader.Number("exit_when_idle", layer.exit_when_idle_s);
  reader.Text("token_file", layer.token_file);
  reader.UserList("allowed_uids", layer.allowed_uids);
  reader.Text("log_level", layer.log_level);
  if (const absl::Status status = reader.Finish(); !status.ok()) return status;
  return layer;
}

}  // namespace neuraldbg
