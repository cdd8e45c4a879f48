// Merging the records of one site in one step (micro-batches, repeated calls) into one, and turning the result into a
// Sample. Pure functions over plain values.
//
// A merged value is itself a Record, because every payload was laid out to be additive: counts and sums add up,
// extremes take the extreme. Means that a payload carries (entropy, load) are kept weighted until ToSample divides
// them. A field is valid in the merged record only if it was valid in every part: a sum over some of the calls would be
// a wrong value, and missing is never zero. Sums are doubles; the one rounding to float32 happens in ToSample.
#pragma once

#include <cstdint>

#include "daemon/model/sample.h"
#include "shared/record.h"

namespace neuraldbg {

struct MergedRecord {
  Record record;            // head of the first part (flags: of all parts), payload merged
  std::uint32_t calls = 0;  // parts merged
  std::uint32_t next = 0;   // for the owner: chain of kinds that share a site
};

// Starts a merge with its first part.
MergedRecord StartMerge(const Record& first);
// Adds another part. Requires: same site and kind.
void Merge(MergedRecord& merged, const Record& part);
Sample ToSample(const MergedRecord& merged);
// As above, in place. Requires: `sample` is fresh.
void ToSample(const MergedRecord& merged, Sample& sample);

}  // namespace neuraldbg
