// A portable file into a store, as a run of its own.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/store/store.h"

namespace neuraldbg {

// In one transaction: on any error, and if the process ends, the store is as it was. The run belongs to `owner_uid`;
// its launch is "imported:", when it was created, and the launch that it had; a rank that still ran counts as finished,
// since no more of it will come. ALREADY_EXISTS where this run was imported before; otherwise as ReadPortableRun and
// the store.
absl::StatusOr<StoredRun> ImportRun(Store& store, const std::string& path, std::uint32_t owner_uid);

}  // namespace neuraldbg
