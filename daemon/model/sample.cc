#include "daemon/model/sample.h"

#include <algorithm>

namespace neuraldbg {

bool Sample::Has(Statistic statistic) const {
  const std::size_t index = StatisticIndex(kind, statistic);
  return index < kMaxStatistics && ((present >> index) & 1u) != 0;
}

float Sample::Get(Statistic statistic) const {
  return Has(statistic) ? value[StatisticIndex(kind, statistic)] : kMissing;
}

void Sample::Set(Statistic statistic, float measured) {
  const std::size_t index = StatisticIndex(kind, statistic);
  if (index >= kMaxStatistics) return;  // not a statistic of this kind: nothing to hold it
  value[index] = measured;
  present |= 1u << index;
}

bool EndedByOptimizer(const StepFrame& frame) {
  return frame.complete && std::none_of(frame.samples.begin(), frame.samples.end(), [](const Sample& sample) {
           return sample.kind == RecordKind::kStep && (sample.flags & kFlagUnannounced) != 0;
         });
}

}  // namespace neuraldbg
