// One layer of the configuration before layers are put on top of each other: everything optional, nothing validated
// beyond its type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace neuraldbg {

struct ConfigLayer {
  std::optional<std::string> shm_directory, data_directory, http, role, host_name, group, tenant, token_file, log_level;
  std::optional<std::vector<std::string>> grpc, nats;
  std::optional<double> exit_when_idle_s;
  std::optional<std::vector<std::uint32_t>> allowed_uids;

  // Fills what is missing here from a layer below.
  void FillFrom(const ConfigLayer& below);
};

// INVALID_ARGUMENT names file, line and key; unknown keys are refused, since a misspelt one would be ignored for ever.
absl::StatusOr<ConfigLayer> ReadConfigFile(const std::string& path);

}  // namespace neuraldbg
