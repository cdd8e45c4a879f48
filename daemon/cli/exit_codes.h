// What neuraldbgctl ends with; scripts and CI rely on these numbers (docs/cli.md).
#pragma once

#include "absl/status/status.h"
#include "neuraldbg/v1/diagnosis.pb.h"

namespace neuraldbg {

enum ExitCode : int {
  kExitSuccess = 0,  // HEALTHY, and success of other verbs
  kExitFault = 1,    // FAULT; doctor: a check failed
  kExitUsage = 2,
  kExitUnreachable = 3,  // no daemon, or it cannot answer
  kExitNoSuchRun = 4,
  kExitUnsure = 5,  // UNSURE or INCOMPLETE_DATA
};

inline ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitSuccess;
    case absl::StatusCode::kNotFound:
      return kExitNoSuchRun;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    default:
      return kExitUnreachable;
  }
}

inline ExitCode ExitCodeOf(v1::Diagnosis::Verdict verdict) {
  switch (verdict) {
    case v1::Diagnosis::HEALTHY:
      return kExitSuccess;
    case v1::Diagnosis::FAULT:
      return kExitFault;
    default:
      return kExitUnsure;
  }
}

}  // namespace neuraldbg
