#include "agent/src/segment_sizing.h"

#include <algorithm>
#include <bit>

#include "shared/ring_layout.h"

namespace neuraldbg {
namespace {

// A restart of the daemon takes about a second, which is ten steps of a small model and a few of a large one.
constexpr std::uint64_t kOutageSteps = 16;
// 32 MiB a lane, 128 MiB a rank: a model that asks for more has steps of many seconds.
constexpr std::uint64_t kLaneCapacityMax = 1u << 18;
constexpr std::uint64_t kSitesStep = 4096;
// An entry of a site with long names; measured entries of a GPT take 190 bytes.
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
