// One stored run into a portable file, with all that a replay needs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/store/portable_run.h"
#include "daemon/store/store.h"

namespace neuraldbg {

struct ExportedRun {
  std::uint64_t bytes = 0, ranks = 0, frames = 0;
  std::uint64_t records = 0;  // received, of all ranks
};

// ALREADY_EXISTS where `path` is there and may not be replaced. On any error `path` is as it was.
absl::StatusOr<ExportedRun> ExportRun(StoreReader& reader, const StoredRun& run, const std::string& path,
                                      PortableRunWriter::Existing existing);

}  // namespace neuraldbg
