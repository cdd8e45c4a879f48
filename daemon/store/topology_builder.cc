#include "daemon/store/topology_builder.h"

#include <type_traits>
#include <variant>

namespace neuraldbg::store {
namespace {

// More sites than any segment can name (SegmentOptions::sites is 8192); an id beyond it is damage, not a site.
constexpr std::uint32_t kMaxSites = 1u << 20;

void AddSite(const SiteEntry& site, Topology& topology) {
  if (site.id >= kMaxSites) {
    return;
  }
  while (topology.sites.size() <= site.id) {
    SiteEntry gap;
    gap.id = static_cast<std::uint32_t>(topology.sites.size());
    gap.level = ObservationLevel::kNotObserved;
    topology.sites.push_back(std::move(gap));
  }
  topology.sites[site.id] = site;
}

}  // namespace

void AddToTopology(const ManifestEntry& entry, Topology& topology) {
  std::visit(
      [&topology](const auto& e) {
        using T = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<T, RunEntry>) {
          topology.run = e;
        } else if constexpr (std::is_same_v<T, SiteEntry>) {
          AddSite(e, topology);
        } else if constexpr (std::is_same_v<T, EdgeEntry>) {
          topology.edges.push_back(e);
        } else if constexpr (std::is_same_v<T, SinkEntry>) {
          topology.sinks.push_back(e.site);
        } else if constexpr (std::is_same_v<T, ParameterInitEntry>) {
          topology.parameter_inits.push_back(e);
        } else if constexpr (std::is_same_v<T, MarkEntry>) {
          topology.marks.push_back(e);
        } else {
          topology.ready = true;
        }
      },
      entry);
}

}  // namespace neuraldbg::store
