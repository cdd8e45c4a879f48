#include "agent/src/segment_sizing.h"

#include <algorithm>
#include <bit>

#include "shared/ring_layout.h"

namespace neuraldbg {
namespace {

// Default: what a lane holds while the daemon is away, whatever the length of a step.
constexpr std::uint64_t kOutageSteps = 16;
// 32 MiB a lane, 128 MiB in the four lanes of a rank: no more than that is taken unasked.
constexpr std::uint64_t kLaneCapacityMax = 1u << 18;
constexpr std::uint64_t kSitesStep = 4096;
// Room for names of a deeply nested module (tests/agent/segment_sizing_test.cc writes such).
constexpr std::uint64_t kManifestBytesPerSite = 512;

}  // namespace

SegmentOptions SizedFor(SegmentOptions options, const ExpectedLoad& load) noexcept {
  const std::uint64_t slots = std::bit_ceil(std::max<std::uint64_t>(1, kOutageSteps * load.records_per_step));
  options.lane_capacity =
      std::max(options.lane_capacity, static_cast<std::uint32_t>(std::min(slots, kLaneCapacityMax)));
  const std::uint64_t sites = (load.sites + kSitesStep - 1) / kSitesStep * kSitesStep;
  options.sites = std::max(options.sites, static_cast<std::uint32_t>(std::min<std::uint64_t>(sites, kMaxSites)));
  const std::uint64_t manifest = kManifestBytesPerSite * options.sites;
  options.manifest_bytes = std::max(options.manifest_bytes,
                                    static_cast<std::uint32_t>(std::min<std::uint64_t>(manifest, kMaxManifestBytes)));
  return options;
}

}  // namespace neuraldbg
