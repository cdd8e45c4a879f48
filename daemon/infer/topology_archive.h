// The static side of a rank inside a snapshot. The manifest's own encoding is for the wire and the store; here the
// snapshot's one-Visit-for-both-directions rule applies.
#pragma once

#include "daemon/model/sample.h"
#include "shared/series/state_archive.h"

namespace neuraldbg {

template <typename Archive>
void VisitSite(Archive& archive, SiteEntry& site) {
  Fields(archive, site.id, site.name, site.module, site.module_kind, site.role, site.phase, site.dtype,
         site.requires_grad, site.level, site.topological_index, site.twin, site.covered_by, site.tie_group,
         site.optimizer_group, site.owner, site.shape);
}

template <typename Archive>
void VisitRun(Archive& archive, RunEntry& run) {
  Fields(archive, run.run_name, run.launch, run.host, run.framework, run.agent_version, run.rank, run.world_size,
         run.incarnation, run.start_step, run.compiled, run.graph_exact, run.planned_sites, run.parameter_count);
}

template <typename Archive, typename T, typename VisitOne>
void VisitList(Archive& archive, std::vector<T>& list, VisitOne visit) {
  list.resize(archive.Count(list.size(), 1));
  for (T& item : list) visit(item);
}

template <typename Archive>
void VisitTopology(Archive& archive, Topology& topology) {
  VisitRun(archive, topology.run);
  VisitList(archive, topology.sites, [&](SiteEntry& site) { VisitSite(archive, site); });
  VisitList(archive, topology.edges, [&](EdgeEntry& edge) { Fields(archive, edge.producer, edge.consumer); });
  Fields(archive, topology.sinks);
  VisitList(archive, topology.parameter_inits, [&](ParameterInitEntry& init) {
    Fields(archive, init.site, init.numel, init.sum, init.sum_squares, init.max_abs, init.bits);
  });
  VisitList(archive, topology.marks, [&](MarkEntry& mark) { Fields(archive, mark.step, mark.text); });
  Fields(archive, topology.ready);
}

}  // namespace neuraldbg
