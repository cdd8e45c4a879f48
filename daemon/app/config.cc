#include "daemon/app/config.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/app/config_layer.h"
#include "spdlog/fmt/fmt.h"

namespace neuraldbg {
namespace {

constexpr auto kLogLevels = std::to_array<std::string_view>({"trace", "debug", "info", "warning", "error", "off"});
constexpr std::string_view kHttpDefault = "127.0.0.1:7434";
constexpr std::string_view kHttpOff = "off";
constexpr double kIdleSecondsMax = 1e9;  // 31 years: anything larger is a mistake, and would overflow a duration

struct Parsed {
  ConfigLayer flags;
  std::optional<std::string> config_file;
  bool check_only = false;
  std::optional<std::string> print;
};

absl::StatusOr<Parsed> ParseFlags(const std::vector<std::string>& arguments) {
  CLI::App app("neuraldbgd: drains the training processes of this host, finds causes, stores and serves them.",
               "neuraldbgd");
  Parsed parsed;
  ConfigLayer& flags = parsed.flags;
  std::vector<std::string> grpc, nats;
  app.add_option("--config", parsed.config_file, "TOML file; environment NEURALDBG_CONFIG");
  app.add_option("--shm-dir", flags.shm_directory, "where training processes put their segments (/dev/shm)");
  app.add_option("--data-dir", flags.data_directory, "the store (~/.local/state/neuraldbg)");
  app.add_option("--grpc", grpc, "unix:PATH or HOST:PORT to serve gRPC on; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--group", flags.group, "drain the segments of other users, too, that are open to this group");
  app.add_option("--host-name", flags.host_name, "name of this host in reports (what the agent says)");
  app.add_option("--http", flags.http, "HOST:PORT to serve /metrics and /healthz on (127.0.0.1:7434), or off");
  // Flags of later releases are known, so that asking for one gets a sentence, and not listed, because they do nothing.
  constexpr const char* kNotListed = "";
  app.add_option("--role", flags.role)->group(kNotListed);
  app.add_option("--nats", nats)->allow_extra_args(false)->take_all()->group(kNotListed);
  app.add_option("--tenant", flags.tenant)->group(kNotListed);
  app.add_option("--exit-when-idle", flags.exit_when_idle_s, "end this many seconds after the last live segment");
  app.add_flag("--check-config", parsed.check_only, "print the configuration in effect and exit");
  app.set_version_flag("--version", "neuraldbgd " NEURALDBG_VERSION);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes them from the back
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    parsed.print = app.help();
  } catch (const CLI::CallForVersion&) {
    parsed.print = absl::StrCat("neuraldbgd ", NEURALDBG_VERSION, "\n");
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (neuraldbgd --help lists all flags)."));
  }
  if (!grpc.empty()) flags.grpc = std::move(grpc);
  if (!nats.empty()) flags.nats = std::move(nats);
  return parsed;
}

ConfigLayer ReadEnvironment(const Surroundings& surroundings) {
  ConfigLayer layer;
  const auto get = [&](const char* name) {
    std::optional<std::string> value = surroundings.environment(name);
    return value && !value->empty() ? value : std::nullopt;
  };
  layer.shm_directory = get("NEURALDBG_SHM_DIR");
  layer.data_directory = get("NEURALDBG_DATA_DIR");
  layer.token_file = get("NEURALDBG_TOKEN_FILE");
  layer.log_level = get("NEURALDBG_LOG_LEVEL");
  layer.group = get("NEURALDBG_GROUP");
  // Clients of the same environment look for the daemon there.
  if (const auto address = get("NEURALDBG_ADDRESS")) layer.grpc = std::vector<std::string>{*address};
  return layer;
}

absl::Status CheckHostPort(const std::string& address, const char* what, const char* wanted = "HOST:PORT") {
  const std::size_t colon = address.rfind(':');
  std::uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(what, " must be ", wanted, ", not \"", address, "\"."));
  }
  return absl::OkStatus();
}

absl::Status CheckGrpc(const std::string& address) {
  constexpr std::string_view kUnix = "unix:";
  if (!address.starts_with(kUnix)) return CheckHostPort(address, "--grpc", "unix:PATH or HOST:PORT");
  if (address.size() <= kUnix.size() || address[kUnix.size()] != '/') {
    return absl::InvalidArgumentError(absl::StrCat("--grpc unix:PATH needs an absolute path, not \"", address, "\"."));
  }
  return absl::OkStatus();
}

// A setting that has no effect in this release is refused: ignoring it would let somebody believe it has.
absl::Status CheckSupported(const ConfigLayer& layer) {
  const std::string role = layer.role.value_or("host");
  if (role != "host" && role != "fleet") {
    return absl::InvalidArgumentError(absl::StrCat("--role must be host or fleet, not \"", role, "\"."));
  }
  if (role == "fleet") {
    return absl::InvalidArgumentError("The fleet role is not part of this release; run neuraldbgd with --role host.");
  }
  if (layer.nats && !layer.nats->empty()) {
    return absl::InvalidArgumentError("Publishing to NATS is not part of this release; leave --nats out.");
  }
  if (layer.tenant) {
    return absl::InvalidArgumentError(
        "--tenant names a tenant of a fleet, which is not part of this release; leave it out.");
  }
  return absl::OkStatus();
}

absl::Status Validate(const Config& config) {
  for (const std::string& address : config.grpc) {
    if (absl::Status status = CheckGrpc(address); !status.ok()) return status;
  }
  if (config.http) {
    if (absl::Status status = CheckHostPort(*config.http, "--http", "HOST:PORT or off"); !status.ok()) return status;
  }
  if (config.exit_when_idle_s && !(*config.exit_when_idle_s >= 0 && *config.exit_when_idle_s <= kIdleSecondsMax)) {
    return absl::InvalidArgumentError("--exit-when-idle must be a number of seconds that is not negative.");
  }
  if (std::find(kLogLevels.begin(), kLogLevels.end(), config.log_level) == kLogLevels.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The log level must be trace, debug, info, warning, error or off, not \"", config.log_level, "\"."));
  }
  if (config.data_directory.empty()) {
    return absl::InvalidArgumentError("No data directory: set --data-dir, NEURALDBG_DATA_DIR or HOME.");
  }
  return absl::OkStatus();
}

Config Resolve(const ConfigLayer& layer, const Surroundings& surroundings) {
  Config config;
  config.shm_directory = layer.shm_directory.value_or(config.shm_directory);
  config.data_directory = layer.data_directory.value_or(DefaultDataDirectory(surroundings));
  config.grpc = layer.grpc.value_or(std::vector<std::string>{
      absl::StrCat("unix:", RuntimeDirectory(surroundings), "/neuraldbgd.sock"), "127.0.0.1:7433"});
  // A daemon that a training job started is one of several on a host, and nobody chose its port.
  config.http_next_free = layer.exit_when_idle_s && !layer.http;
  config.http = layer.http.value_or(std::string(kHttpDefault));
  if (*config.http == kHttpOff) config.http.reset();
  config.host_name = layer.host_name.value_or("");
  config.exit_when_idle_s = layer.exit_when_idle_s;
  config.token_file = layer.token_file.value_or("");
  config.allowed_uids = layer.allowed_uids.value_or(std::vector<std::uint32_t>{});
  config.log_level = layer.log_level.value_or(config.log_level);
  if (surroundings.uid != 0) config.segment_access.uid = surroundings.uid;
  if (surroundings.user_name == kServiceUser) config.segment_access.gid = surroundings.gid;
  return config;
}

absl::Status ResolveGroup(const ConfigLayer& layer, const Surroundings& surroundings, Config& config) {
  if (!layer.group) return absl::OkStatus();
  config.segment_access.gid = surroundings.own_group(*layer.group);
  if (config.segment_access.gid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--group must name a group that neuraldbgd runs in, not \"", *layer.group, "\"."));
}

// A group by its name or number, if this process is in it.
std::optional<std::uint32_t> OwnGroup(const std::string& name_or_gid) {
  std::uint32_t gid = 0;
  if (!absl::SimpleAtoi(name_or_gid, &gid)) {
    const group* found = ::getgrnam(name_or_gid.c_str());
    if (found == nullptr) return std::nullopt;
    gid = found->gr_gid;
  }
  if (gid == ::getegid()) return gid;
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(::getgroups(0, nullptr), 0)));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(count, 0)));
  return std::find(groups.begin(), groups.end(), gid) != groups.end() ? std::optional(gid) : std::nullopt;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace

Surroundings Surroundings::OfThisProcess() {
  Surroundings surroundings;
  surroundings.environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  surroundings.uid = ::geteuid();
  surroundings.gid = ::getegid();
  surroundings.own_group = OwnGroup;
  if (const passwd* user = ::getpwuid(surroundings.uid)) {
    surroundings.user_name = user->pw_name;
    surroundings.home = user->pw_dir;
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') surroundings.home = home;
  surroundings.is_directory = [](const std::string& path) {
    struct stat status{};
    return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  };
  surroundings.is_writable = [](const std::string& path) { return ::access(path.c_str(), W_OK) == 0; };
  return surroundings;
}

std::string RuntimeDirectory(const Surroundings& surroundings) {
  const std::optional<std::string> xdg = surroundings.environment("XDG_RUNTIME_DIR");
  if (xdg && !xdg->empty() && surroundings.is_directory(*xdg)) return *xdg + "/neuraldbg";
  const std::string of_user = absl::StrCat("/run/user/", surroundings.uid);
  if (surroundings.is_directory(of_user) && surroundings.is_writable(of_user)) return of_user + "/neuraldbg";
  return absl::StrCat("/tmp/neuraldbg-", surroundings.uid, "/neuraldbg");
}

std::string DefaultDataDirectory(const Surroundings& surroundings) {
  if (surroundings.user_name == kServiceUser) return "/var/lib/neuraldbg";
  return surroundings.home.empty() ? "" : surroundings.home + "/.local/state/neuraldbg";
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const Surroundings& surroundings) {
  absl::StatusOr<Parsed> parsed = ParseFlags(arguments);
  if (!parsed.ok()) return parsed.status();
  CommandLine line;
  line.check_only = parsed->check_only;
  line.print = parsed->print;
  if (line.print) return line;
  ConfigLayer layer = parsed->flags;
  layer.FillFrom(ReadEnvironment(surroundings));
  std::optional<std::string> file = parsed->config_file;
  if (!file) file = surroundings.environment("NEURALDBG_CONFIG");
  if (file && !file->empty()) {
    const absl::StatusOr<ConfigLayer> from_file = ReadConfigFile(*file);
    if (!from_file.ok()) return from_file.status();
    layer.FillFrom(*from_file);
  }
  if (const absl::Status status = CheckSupported(layer); !status.ok()) return status;
  line.config = Resolve(layer, surroundings);
  if (const absl::Status status = ResolveGroup(layer, surroundings, line.config); !status.ok()) return status;
  if (const absl::Status status = Validate(line.config); !status.ok()) return status;
  return line;
}

std::string ToToml(const Config& config) {
  std::string grpc;
  for (const std::string& address : config.grpc) absl::StrAppend(&grpc, grpc.empty() ? "" : ", ", Quoted(address));
  std::string out = fmt::format("shm_dir = {}\ndata_dir = {}\ngrpc = [{}]\n", Quoted(config.shm_directory),
                                Quoted(config.data_directory), grpc);
  const std::string http = Quoted(config.http.value_or(std::string(kHttpOff)));
  // As a setting it would be a port that somebody chose.
  out += config.http_next_free ? fmt::format("# http = {}, or the next free port\n", http)
                               : fmt::format("http = {}\n", http);
  out += "role = \"host\"\n";
  if (!config.host_name.empty()) out += fmt::format("host_name = {}\n", Quoted(config.host_name));
  if (config.exit_when_idle_s) out += fmt::format("exit_when_idle = {}\n", *config.exit_when_idle_s);
  if (!config.token_file.empty()) out += fmt::format("token_file = {}\n", Quoted(config.token_file));
  if (config.segment_access.gid) out += fmt::format("group = \"{}\"\n", *config.segment_access.gid);
  if (!config.allowed_uids.empty()) out += fmt::format("allowed_uids = [{}]\n", fmt::join(config.allowed_uids, ", "));
  out += fmt::format("log_level = {}\n", Quoted(config.log_level));
  return out;
}

}  // namespace neuraldbg
