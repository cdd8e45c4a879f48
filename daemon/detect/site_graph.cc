#include "daemon/detect/site_graph.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

namespace neuraldbg {
namespace {

using Kind = SiteUse::Kind;

// By the end of the class name, so that people's own subclasses (ScaledTanh) count.
constexpr std::array<std::string_view, 5> kSquashing{"Tanh", "Sigmoid", "Softmax", "tanh", "sigmoid"};

bool EndsWithAny(std::string_view name, std::span<const std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool IsForward(SiteRole role) {
  return role == SiteRole::kOutput || role == SiteRole::kInput || role == SiteRole::kMerge;
}

bool IsGradient(SiteRole role) {
  return role == SiteRole::kOutputGradient || role == SiteRole::kInputGradient || role == SiteRole::kMergeGradient;
}

bool IsInteger(DType dtype) {
  switch (dtype) {
    case DType::kInt64:
    case DType::kInt32:
    case DType::kInt16:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return true;
    default:
      return false;
  }
}

// Compressed rows from (row, item) pairs; items of a row are ascending and unique.
SiteGraph::Rows Compress(std::size_t rows, std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs) {
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  SiteGraph::Rows result;
  result.begin.assign(rows + 1, 0);
  for (const auto& [row, item] : pairs) {
    ++result.begin[row + 1];
    result.items.push_back(item);
  }
  for (std::size_t row = 0; row < rows; ++row) result.begin[row + 1] += result.begin[row];
  return result;
}

// Follows sites that are not observed to what stands for them: the covering site, or their own producers.
class ProducerResolver {
 public:
  ProducerResolver(const Topology& topology, const std::vector<SiteUse>& uses) : topology_(topology), uses_(uses) {
    for (const EdgeEntry& edge : topology.edges) into_.emplace_back(edge.consumer, edge.producer);
    std::sort(into_.begin(), into_.end());
  }

  void Resolve(std::uint32_t site, std::vector<std::uint32_t>& found) {
    visited_.assign(topology_.sites.size(), false);
    Walk(site, found);
  }

 private:
  // Iterative: the depth of a hostile graph is not bounded by anything.
  void Walk(std::uint32_t start, std::vector<std::uint32_t>& found) {
    std::vector<std::uint32_t> open{start};
    while (!open.empty()) {
      const std::uint32_t site = open.back();
      open.pop_back();
      if (site >= topology_.sites.size() || visited_[site]) continue;
      visited_[site] = true;
      if (uses_[site].kind == Kind::kForward || uses_[site].kind == Kind::kBatch) {
        found.push_back(site);
      } else if (topology_.sites[site].covered_by != kNoSite) {
        open.push_back(topology_.sites[site].covered_by);
      } else {
        const auto [first, last] = std::equal_range(into_.begin(), into_.end(), std::pair{site, 0U},
                                                    [](const auto& a, const auto& b) { return a.first < b.first; });
        for (auto edge = first; edge != last; ++edge) open.push_back(edge->second);
      }
    }
  }

  const Topology& topology_;
  const std::vector<SiteUse>& uses_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> into_;  // (consumer, producer)
  std::vector<bool> visited_;
};

}  // namespace

SiteGraph::SiteGraph(const Topology& topology) {
  AddSites(topology);
  AddTwins(topology);
  AddEdges(topology);
  MarkSinks(topology);
}

void SiteGraph::AddSites(const Topology& topology) {
  uses_.assign(topology.sites.size(), SiteUse{});
  std::vector<std::uint32_t> forward;
  for (std::uint32_t id = 0; id < topology.sites.size(); ++id) {
    const SiteEntry& site = topology.sites[id];
    if (IsForward(site.role) && site.level != ObservationLevel::kNotObserved) forward.push_back(id);
    if (site.role == SiteRole::kBatch) {
      uses_[id] = {Kind::kBatch, static_cast<std::uint32_t>(batches_.size())};
      batches_.push_back(id);
      batch_is_integer_.push_back(IsInteger(site.dtype));
    } else if (site.role == SiteRole::kOptimizer) {
      uses_[id] = {Kind::kOptimizer, static_cast<std::uint32_t>(optimizers_.size())};
      optimizers_.push_back(id);
    } else if (site.role == SiteRole::kLoss) {
      uses_[id] = {Kind::kLoss, 0};
      loss_site_ = id;
    } else if (site.role == SiteRole::kStep) {
      uses_[id] = {Kind::kStep, 0};
      step_site_ = id;
    }
  }
  std::stable_sort(forward.begin(), forward.end(), [&](std::uint32_t a, std::uint32_t b) {
    return topology.sites[a].topological_index < topology.sites[b].topological_index;
  });
  for (const std::uint32_t id : forward) {
    const SiteEntry& site = topology.sites[id];
    GraphNode node;
    node.site = id;
    node.role = site.role;
    node.dtype = site.dtype;
    node.requires_grad = site.requires_grad;
    node.module = site.role == SiteRole::kOutput || site.owner.empty() ? site.module : site.owner;
    node.root_code = site.role != SiteRole::kOutput && site.owner.empty();
    if (site.role == SiteRole::kOutput) node.kind = site.module_kind;
    node.squashing = EndsWithAny(node.kind, kSquashing);
    uses_[id] = {Kind::kForward, node_count()};
    nodes_.push_back(std::move(node));
  }
}

void SiteGraph::AddTwins(const Topology& topology) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> owned;
  std::unordered_multimap<std::string_view, std::uint32_t> calls;
  for (std::uint32_t i = 0; i < node_count(); ++i) {
    if (nodes_[i].role == SiteRole::kOutput) calls.emplace(nodes_[i].module, i);
  }
  for (std::uint32_t id = 0; id < topology.sites.size(); ++id) {
    const SiteEntry& site = topology.sites[id];
    SiteUse twin = use(site.twin);
    // A container without a tap of its own is stood for by the site that covers it.
    if (site.role == SiteRole::kParameter && twin.kind == Kind::kNone && site.twin < topology.sites.size()) {
      twin = use(topology.sites[site.twin].covered_by);
    }
    if (IsGradient(site.role) && twin.kind == Kind::kForward && site.level != ObservationLevel::kNotObserved) {
      uses_[id] = {Kind::kBackward, twin.index};
      nodes_[twin.index].gradient_site = id;
    } else if (site.role == SiteRole::kParameter) {
      const auto index = static_cast<std::uint32_t>(parameters_.size());
      uses_[id] = {Kind::kParameter, index};
      GraphParameter parameter{
          id, kNoSite, site.tie_group, site.requires_grad, site.optimizer_group != kNoSite, site.module, site.name};
      if (twin.kind == Kind::kForward) {
        parameter.node = twin.index;
        owned.emplace_back(twin.index, index);
        // Every call of a module that is called several times in a pass uses its weights.
        const auto [begin, end] = calls.equal_range(nodes_[twin.index].module);
        for (auto call = begin; call != end; ++call) owned.emplace_back(call->second, index);
      }
      parameters_.push_back(std::move(parameter));
    }
  }
  owned_ = Compress(nodes_.size(), std::move(owned));
  // A leaf without weights is an activation, or something like one (dropout, pooling): its units can die, and no weight
  // of its own can be why.
  for (std::uint32_t i = 0; i < node_count(); ++i) {
    const bool leaf = nodes_[i].role == SiteRole::kOutput;
    nodes_[i].activation = leaf && (parameters_of(i).empty() || nodes_[i].kind == "PReLU");
  }
}

void SiteGraph::AddEdges(const Topology& topology) {
  ProducerResolver resolver(topology, uses_);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> parents, consumers;
  std::vector<std::uint32_t> producers;
  for (const EdgeEntry& edge : topology.edges) {
    const SiteUse consumer = use(edge.consumer);
    if (consumer.kind != Kind::kForward) continue;
    producers.clear();
    resolver.Resolve(edge.producer, producers);
    for (const std::uint32_t site : producers) {
      const SiteUse producer = use(site);
      if (producer.kind == Kind::kBatch) {
        nodes_[consumer.index].reads_batch = true;
      } else if (producer.index < consumer.index) {  // the forward pass is acyclic; anything else is not an edge of it
        parents.emplace_back(consumer.index, producer.index);
        consumers.emplace_back(producer.index, consumer.index);
      }
    }
  }
  parents_ = Compress(nodes_.size(), std::move(parents));
  consumers_ = Compress(nodes_.size(), std::move(consumers));
}

void SiteGraph::MarkSinks(const Topology& topology) {
  ProducerResolver resolver(topology, uses_);
  std::vector<std::uint32_t> found;
  for (const std::uint32_t sink : topology.sinks) resolver.Resolve(sink, found);
  for (const std::uint32_t site : found) {
    if (use(site).kind == Kind::kForward) nodes_[use(site).index].sink = true;
  }
  for (std::uint32_t node = 0; node < node_count(); ++node) {
    if (nodes_[node].sink && nodes_[node].gradient_site != kNoSite) gradient_roots_.push_back(node);
  }
  if (!gradient_roots_.empty()) return;
  for (std::uint32_t node = 0; node < node_count(); ++node) {
    const auto row = consumers(node);
    const bool fed =
        std::any_of(row.begin(), row.end(), [&](std::uint32_t c) { return nodes_[c].gradient_site != kNoSite; });
    if (nodes_[node].gradient_site != kNoSite && !fed) gradient_roots_.push_back(node);
  }
}

GraphGrowth SiteGraph::GrowthSince(const SiteGraph& older) const {
  GraphGrowth growth;
  growth.site_count = uses_.size();
  const auto from = [&](std::uint32_t site, Kind kind) {
    const SiteUse use = older.use(site);
    return use.kind == kind ? use.index : kNoSite;
  };
  for (const GraphNode& node : nodes_) growth.node_from.push_back(from(node.site, Kind::kForward));
  for (const GraphParameter& p : parameters_) growth.parameter_from.push_back(from(p.site, Kind::kParameter));
  for (const std::uint32_t site : batches_) growth.batch_from.push_back(from(site, Kind::kBatch));
  for (const std::uint32_t site : optimizers_) growth.optimizer_from.push_back(from(site, Kind::kOptimizer));
  return growth;
}

}  // namespace neuraldbg
