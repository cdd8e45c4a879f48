// A whole run, piece by piece: what the store reads out, what a portable file holds, what an import puts back.
//
// Order: the run, its ranks, its transitions, its frames in the order in which they were committed over all ranks, its
// diagnosis if it has one. A sink that returns an error ends the reading with it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "daemon/store/store.h"

namespace neuraldbg {

// One incarnation of one rank. The keys of a run hold whatever run_id its source uses.
struct RecordedRank {
  StoredRank rank;
  std::uint64_t frames = 0;  // how many of its frames follow
  std::vector<ManifestEntry> manifest;
  std::vector<SiteSummary> site_totals;
  std::vector<LastPlace> last_places;  // if it died: the newest record of each of its threads
};

class RunSink {
 public:
  virtual ~RunSink() = default;
  virtual absl::Status OnRun(const StoredRun& run) = 0;
  virtual absl::Status OnRank(RecordedRank rank) = 0;
  virtual absl::Status OnTransition(Transition transition) = 0;
  virtual absl::Status OnFrame(StepFrame frame) = 0;
  virtual absl::Status OnDiagnosis(Diagnosis diagnosis) = 0;
};

}  // namespace neuraldbg
