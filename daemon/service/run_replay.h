// Detection and inference again, over a portable file.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/model/diagnosis.h"
#include "neuraldbg/v1/diagnosis.pb.h"

namespace neuraldbg {

struct ReplayedRun {
  v1::Diagnosis diagnosis;
  std::optional<v1::Diagnosis> recorded;  // what the file says was found when it was written
};

// A fresh engine sees what the one of the daemon saw, in the same order: topologies, frames, ends of ranks. DATA_LOSS
// as ReadPortableRun.
absl::StatusOr<ReplayedRun> ReplayRun(const std::string& path);

}  // namespace neuraldbg
