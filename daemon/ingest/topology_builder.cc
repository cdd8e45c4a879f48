#include "daemon/ingest/topology_builder.h"

#include <type_traits>
#include <utility>

namespace neuraldbg {
namespace {

void Clean(std::string& text) { text = SanitizeString(text); }

bool InRange(std::uint32_t site, std::uint32_t site_limit) { return site == kNoSite || site < site_limit; }

bool ApplySite(const SiteEntry& site, std::uint32_t site_limit, Topology& topology) {
  if (site.id >= site_limit || !InRange(site.twin, site_limit) || !InRange(site.covered_by, site_limit)) return false;
  while (topology.sites.size() <= site.id) {
    SiteEntry gap;  // announced out of order: a place without observation until its own entry comes
    gap.id = static_cast<std::uint32_t>(topology.sites.size());
    gap.level = ObservationLevel::kNotObserved;
    topology.sites.push_back(std::move(gap));
  }
  topology.sites[site.id] = site;
  return true;
}

bool ApplyInit(const ParameterInitEntry& init, std::uint32_t site_limit, Topology& topology) {
  if (init.site >= site_limit) return false;
  for (ParameterInitEntry& known : topology.parameter_inits) {
    if (known.site != init.site) continue;
    known = init;
    return true;
  }
  topology.parameter_inits.push_back(init);
  return true;
}

void ApplyRun(const RunEntry& run, Topology& topology) {
  const bool first = topology.run.run_name.empty();
  RunEntry updated = run;
  if (!first) {
    updated.run_name = topology.run.run_name;
    updated.launch = topology.run.launch;
    updated.rank = topology.run.rank;
    updated.incarnation = topology.run.incarnation;
  }
  topology.run = std::move(updated);
}

}  // namespace

ManifestEntry Sanitized(ManifestEntry entry) {
  std::visit(
      [](auto& e) {
        using T = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<T, RunEntry>) {
          for (std::string* text : {&e.run_name, &e.launch, &e.host, &e.framework, &e.agent_version}) Clean(*text);
        } else if constexpr (std::is_same_v<T, SiteEntry>) {
          for (std::string* text : {&e.name, &e.module, &e.module_kind, &e.owner}) Clean(*text);
        } else if constexpr (std::is_same_v<T, MarkEntry>) {
          Clean(e.text);
        }
      },
      entry);
  return entry;
}

bool ApplyEntry(const ManifestEntry& entry, std::uint32_t site_limit, Topology& topology) {
  return std::visit(
      [&](const auto& e) {
        using T = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<T, RunEntry>) {
          ApplyRun(e, topology);
        } else if constexpr (std::is_same_v<T, SiteEntry>) {
          return ApplySite(e, site_limit, topology);
        } else if constexpr (std::is_same_v<T, EdgeEntry>) {
          if (e.producer >= site_limit || e.consumer >= site_limit) return false;
          topology.edges.push_back(e);
        } else if constexpr (std::is_same_v<T, SinkEntry>) {
          if (e.site >= site_limit) return false;
          topology.sinks.push_back(e.site);
        } else if constexpr (std::is_same_v<T, ParameterInitEntry>) {
          return ApplyInit(e, site_limit, topology);
        } else if constexpr (std::is_same_v<T, MarkEntry>) {
          topology.marks.push_back(e);
        } else {
          topology.ready = true;
        }
        return true;
      },
      entry);
}

}  // namespace neuraldbg
