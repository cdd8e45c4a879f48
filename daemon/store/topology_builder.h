// Puts a Topology together from the manifest entries of a rank, in their order; later entries about a site win.
#pragma once

#include "daemon/model/sample.h"

namespace neuraldbg::store {

void AddToTopology(const ManifestEntry& entry, Topology& topology);

}  // namespace neuraldbg::store
