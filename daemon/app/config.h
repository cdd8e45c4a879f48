// The daemon's configuration: flag > environment > TOML file > default, validated once into a plain struct.
//
// Pure apart from reading the configuration file: the environment and the identity of the user come in as values, so
// that every rule can be tested.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "shared/segment_access.h"

namespace neuraldbg {

struct Config {
  std::string shm_directory = "/dev/shm";
  std::string data_directory;
  std::vector<std::string> grpc;    // "unix:/absolute/path" or "HOST:PORT"
  std::optional<std::string> http;  // HOST:PORT; nothing: off
  // Nobody chose the port: where it is taken, the next free one will do, and where none is, the daemon goes without.
  bool http_next_free = false;
  std::string host_name;  // empty: as the agent says
  std::optional<double> exit_when_idle_s;
  std::string token_file;
  std::vector<std::uint32_t> allowed_uids;
  std::string log_level = "info";
  SegmentAccess segment_access;  // the daemon's own segments, root: all; and those of the configured group
};

// Who runs the daemon and in which surroundings.
struct Surroundings {
  std::function<std::optional<std::string>(const std::string&)> environment;
  std::uint32_t uid = 0, gid = 0;
  std::string user_name;
  std::string home;
  std::function<bool(const std::string&)> is_directory, is_writable;
  // The gid of a group that this process is a member of.
  std::function<std::optional<std::uint32_t>(const std::string& name_or_gid)> own_group;

  static Surroundings OfThisProcess();
};

// What the command line asks for.
struct CommandLine {
  Config config;
  bool check_only = false;
  std::optional<std::string> print;  // --help, --version: print it and exit 0
};

// INVALID_ARGUMENT: one sentence that names the flag, variable or key and where it stands.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const Surroundings& surroundings);

// Service user: its daemon serves the users of a host who open their segments to its group (docs/security-model.md).
inline constexpr std::string_view kServiceUser = "neuraldbg";

// "<XDG_RUNTIME_DIR or /run/user/UID or /tmp/neuraldbg-UID>/neuraldbg": the agent and the CLI compute the same.
std::string RuntimeDirectory(const Surroundings& surroundings);
std::string DefaultDataDirectory(const Surroundings& surroundings);

// The effective configuration as TOML, for --check-config.
std::string ToToml(const Config& config);

}  // namespace neuraldbg
