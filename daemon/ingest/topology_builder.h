// Manifest entries -> Topology. Every string is made printable here, at the door, so that no later room has to distrust
// one. Bounded: site ids are below the segment's site count, everything else by the manifest region itself.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/model/sample.h"
#include "shared/manifest.h"

namespace neuraldbg {

// The entry with its strings sanitised (SanitizeString).
ManifestEntry Sanitized(ManifestEntry entry);

// Applies an entry, in manifest order. Returns false (and changes nothing) for one that points outside the segment's
// sites. A site announced again replaces what was known of it; the first RunEntry decides the run's identity.
bool ApplyEntry(const ManifestEntry& entry, std::uint32_t site_limit, Topology& topology);

}  // namespace neuraldbg
