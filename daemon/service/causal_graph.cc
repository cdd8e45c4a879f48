// The graph of the training step as a message: batch -> forward sites -> loss -> gradients against the module graph ->
// optimizer -> parameters -> the forward pass of the next step. The manifest holds the forward part; the rest follows
// from what a training step is.
#include <cstdint>
#include <vector>

#include "daemon/service/convert.h"

namespace neuraldbg {
namespace {

class GraphBuilder {
 public:
  GraphBuilder(const Topology& topology, v1::CausalGraph& graph) : sites_(topology.sites), graph_(graph) {}

  void AddEdge(std::uint32_t from, std::uint32_t to, bool next_step = false) {
    if (from >= sites_.size() || to >= sites_.size() || from == to) return;
    v1::CausalEdge* edge = graph_.add_edges();
    edge->set_from(sites_[from].name);
    edge->set_to(sites_[to].name);
    edge->set_next_step(next_step);
  }

  // The gradient site of a forward site, or kNoSite.
  std::uint32_t GradientOf(std::uint32_t site) const {
    if (site >= sites_.size()) return kNoSite;
    const std::uint32_t twin = sites_[site].twin;
    return twin < sites_.size() && sites_[twin].phase == Phase::kBackward ? twin : kNoSite;
  }

  std::vector<std::uint32_t> SitesOf(SiteRole role) const {
    std::vector<std::uint32_t> found;
    for (std::uint32_t id = 0; id < sites_.size(); ++id) {
      if (sites_[id].role == role) found.push_back(id);
    }
    return found;
  }

 private:
  const std::vector<SiteEntry>& sites_;
  v1::CausalGraph& graph_;
};

void AddNodes(const Topology& topology, v1::CausalGraph& graph) {
  for (const std::size_t index : SitesInStepOrder(topology.sites)) {
    const SiteEntry& site = topology.sites[index];
    v1::CausalNode* node = graph.add_nodes();
    node->set_site(site.name);
    node->set_module(site.module);
    node->set_module_kind(site.module_kind);
    node->set_phase(ToProto(site.phase));
    node->set_order(site.topological_index);
    node->set_observed(site.level != ObservationLevel::kNotObserved);
  }
}

// A parameter is moved by the gradient that leaves its module and by its optimizer group, and acts on the output of its
// module in the next step.
void AddParameterEdges(const Topology& topology, GraphBuilder& builder) {
  const std::vector<std::uint32_t> groups = builder.SitesOf(SiteRole::kOptimizer);
  for (const std::uint32_t parameter : builder.SitesOf(SiteRole::kParameter)) {
    const SiteEntry& site = topology.sites[parameter];
    builder.AddEdge(builder.GradientOf(site.twin), parameter);
    if (site.optimizer_group < groups.size()) builder.AddEdge(groups[site.optimizer_group], parameter);
    builder.AddEdge(parameter, site.twin, true);
  }
}

}  // namespace

v1::CausalGraph ToProto(const Topology& topology, const StoredRun& run) {
  v1::CausalGraph graph;
  graph.set_run(run.display_name);
  graph.set_exact(topology.run.graph_exact);
  AddNodes(topology, graph);
  GraphBuilder builder(topology, graph);
  for (const EdgeEntry& edge : topology.edges) {
    builder.AddEdge(edge.producer, edge.consumer);
    builder.AddEdge(builder.GradientOf(edge.consumer), builder.GradientOf(edge.producer));
  }
  for (const std::uint32_t loss : builder.SitesOf(SiteRole::kLoss)) {
    for (const std::uint32_t sink : topology.sinks) {
      builder.AddEdge(sink, loss);
      builder.AddEdge(loss, builder.GradientOf(sink));
    }
  }
  AddParameterEdges(topology, builder);
  return graph;
}

}  // namespace neuraldbg
