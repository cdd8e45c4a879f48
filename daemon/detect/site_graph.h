// The known causal graph of one rank's training step, as detectors and inference walk it: one node per observed forward
// site, numbered in the order of the forward pass, with edges in compressed rows both ways. A node's gradient is the
// same node in the backward pass, where its consumers are its parents.
//
// Immutable once built; rebuilt when the manifest grows. Nodes that existed keep their site, so state is carried over
// by site, not by number.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/model/sample.h"

namespace neuraldbg {

struct GraphNode {
  std::uint32_t site = kNoSite;           // forward
  std::uint32_t gradient_site = kNoSite;  // kNoSite: not observed backward
  SiteRole role = SiteRole::kOutput;
  DType dtype = DType::kUnknown;
  bool sink = false;         // feeds the loss
  bool reads_batch = false;  // computes from a model input
  bool activation = false;   // a leaf without weights (ReLU, GELU …): may be dead
  bool squashing = false;    // tanh, sigmoid, softmax: may saturate
  bool requires_grad = false;
  bool root_code = false;  // glue or merge that the model's own forward computed, whose path is empty
  std::string module;      // whose mechanism this is: the module, or the owner of glue and merges
  std::string kind;        // module class; empty for glue and merges
};

struct GraphParameter {
  std::uint32_t site = kNoSite;
  std::uint32_t node = kNoSite;  // forward node of its module, kNoSite if there is none
  std::uint32_t tie_group = 0;
  bool requires_grad = false;
  bool in_optimizer = false;
  std::string module, name;
};

// How the indices of a grown graph come from those of the one before; kNoSite: new. Detector state moves along.
struct GraphGrowth {
  std::vector<std::uint32_t> node_from, parameter_from, batch_from, optimizer_from;
  std::size_t site_count = 0;

  template <typename T>
  static void Move(const std::vector<std::uint32_t>& from, std::vector<T>& state) {
    std::vector<T> moved(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i] < state.size()) moved[i] = std::move(state[from[i]]);
    }
    state = std::move(moved);
  }
};

// What a site id stands for.
struct SiteUse {
  enum class Kind : std::uint8_t { kNone, kForward, kBackward, kParameter, kBatch, kOptimizer, kLoss, kStep };
  Kind kind = Kind::kNone;
  std::uint32_t index = 0;  // node, parameter, or n-th batch / optimizer site
};

class SiteGraph {
 public:
  SiteGraph() = default;
  explicit SiteGraph(const Topology& topology);

  std::span<const GraphNode> nodes() const { return nodes_; }
  std::span<const GraphParameter> parameters() const { return parameters_; }
  std::span<const std::uint32_t> batches() const { return batches_; }  // site ids
  bool batch_is_integer(std::uint32_t index) const { return batch_is_integer_[index]; }
  std::span<const std::uint32_t> optimizers() const { return optimizers_; }  // site ids
  std::span<const std::uint32_t> parents(std::uint32_t node) const { return Row(parents_, node); }
  std::span<const std::uint32_t> consumers(std::uint32_t node) const { return Row(consumers_, node); }
  std::span<const std::uint32_t> parameters_of(std::uint32_t node) const { return Row(owned_, node); }
  // Nodes whose gradients are the entry of the backward pass: sinks, or, where none is observed, the last ones that
  // are.
  std::span<const std::uint32_t> gradient_roots() const { return gradient_roots_; }
  SiteUse use(std::uint32_t site) const { return site < uses_.size() ? uses_[site] : SiteUse{}; }
  // `older` is the graph before the manifest grew.
  GraphGrowth GrowthSince(const SiteGraph& older) const;
  std::size_t site_count() const { return uses_.size(); }
  std::uint32_t node_count() const { return static_cast<std::uint32_t>(nodes_.size()); }
  std::uint32_t loss_site() const { return loss_site_; }
  std::uint32_t step_site() const { return step_site_; }

  struct Rows {
    std::vector<std::uint32_t> begin{0};
    std::vector<std::uint32_t> items;
  };

 private:
  static std::span<const std::uint32_t> Row(const Rows& rows, std::uint32_t index) {
    if (index + 1 >= rows.begin.size()) return {};
    return {rows.items.data() + rows.begin[index], rows.items.data() + rows.begin[index + 1]};
  }
  void AddSites(const Topology& topology);
  void AddTwins(const Topology& topology);
  void AddEdges(const Topology& topology);
  void MarkSinks(const Topology& topology);

  std::vector<GraphNode> nodes_;
  std::vector<GraphParameter> parameters_;
  std::vector<std::uint32_t> batches_, optimizers_, gradient_roots_;
  std::vector<bool> batch_is_integer_;
  std::vector<SiteUse> uses_;
  Rows parents_, consumers_, owned_;
  std::uint32_t loss_site_ = kNoSite, step_site_ = kNoSite;
};

}  // namespace neuraldbg
