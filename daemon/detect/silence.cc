#include "daemon/detect/silence.h"

#include <algorithm>

namespace neuraldbg {

void SilenceDetector::Count(Place& place, bool reported, std::uint64_t step) {
  if (reported) {
    place.silent_steps = 0;
    return;
  }
  if (place.silent_steps == 0) place.since = step;
  place.silent_steps = std::min(place.silent_steps + 1, threshold::kSilentSteps);
}

void SilenceDetector::Observe(const Observation& observation, const GraphCutDetector& cut) {
  if (!observation.sharp || !observation.tensors_observed || observation.shed_level > 0) return;
  for (std::uint32_t i = 0; i < forward_.size(); ++i) {
    const TensorReading& reading = observation.forward[i];
    Count(forward_[i], reading.present, observation.step);
    // No gradient is expected where the output took no part in autograd, or the module did not run.
    const bool expected = reading.present && (reading.flags & kFlagRequiresGrad) != 0;
    if (expected && backward_[i].site != kNoSite) {
      Count(backward_[i], observation.backward[i].present || cut.Explains(i), observation.step);
    }
  }
}

std::vector<SilenceDetector::Silent> SilenceDetector::Spots() const {
  std::vector<Silent> spots;
  for (const std::vector<Place>* places : {&forward_, &backward_}) {
    for (const Place& place : *places) {
      if (place.silent_steps >= threshold::kSilentSteps) spots.push_back({place.site, place.since});
    }
  }
  std::sort(spots.begin(), spots.end(), [](const Silent& a, const Silent& b) { return a.site < b.site; });
  return spots;
}

}  // namespace neuraldbg
