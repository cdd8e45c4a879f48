#include "daemon/detect/site_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/daemon/detect/synthetic_run.h"

namespace neuraldbg {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::SyntheticRun;

std::vector<std::uint32_t> List(std::span<const std::uint32_t> row) { return {row.begin(), row.end()}; }

TEST(SiteGraph, ChainHasParentsConsumersAndParameters) {
  const SyntheticRun run(2);  // l0 a0 l1 a1 head
  const SiteGraph graph(run.topology);
  ASSERT_EQ(graph.node_count(), 5U);
  EXPECT_TRUE(graph.nodes()[0].reads_batch);
  EXPECT_THAT(List(graph.parents(0)), IsEmpty());
  EXPECT_THAT(List(graph.parents(3)), ElementsAre(2U));
  EXPECT_THAT(List(graph.consumers(3)), ElementsAre(4U));
  EXPECT_THAT(List(graph.parameters_of(2)), ElementsAre(2U, 3U));
  EXPECT_TRUE(graph.nodes()[4].sink);
  EXPECT_TRUE(graph.nodes()[1].activation);
  EXPECT_FALSE(graph.nodes()[0].activation);
  EXPECT_THAT(List(graph.gradient_roots()), ElementsAre(4U));
}

TEST(SiteGraph, NodesAreInForwardOrderWhateverTheOrderOfSites) {
  SyntheticRun run(2);
  run.topology.sites[0].topological_index = 7;  // l0 now runs last
  const SiteGraph graph(run.topology);
  EXPECT_EQ(graph.nodes()[0].module, "a0");
  EXPECT_EQ(graph.nodes()[4].module, "l0");
}

TEST(SiteGraph, UnobservedSiteIsReplacedByWhatCoversOrFeedsIt) {
  SyntheticRun run(2);
  run.topology.sites[2].level = ObservationLevel::kNotObserved;  // l1
  const SiteGraph bypassed(run.topology);
  ASSERT_EQ(bypassed.node_count(), 4U);
  EXPECT_THAT(List(bypassed.parents(2)), ElementsAre(1U)) << "a1 now reads what l1 read";
  run.topology.sites[2].covered_by = 0;
  const SiteGraph covered(run.topology);
  EXPECT_THAT(List(covered.parents(2)), ElementsAre(0U)) << "a1 now reads l0, which covers l1";
}

TEST(SiteGraph, GlueAndMergeBelongToTheirOwner) {
  SyntheticRun run(2);
  run.topology.sites[2].role = SiteRole::kInput;
  run.topology.sites[2].owner = "block";
  const SiteGraph graph(run.topology);
  EXPECT_EQ(graph.nodes()[2].module, "block");
  EXPECT_EQ(graph.nodes()[2].kind, "");
}

TEST(SiteGraph, EveryCallOfAModuleHasItsWeights) {
  SyntheticRun run(2);
  run.topology.sites[3].module = run.topology.sites[2].module;  // a1 is a second call of l1
  const SiteGraph graph(run.topology);
  EXPECT_THAT(List(graph.parameters_of(3)), ElementsAre(2U, 3U));
  EXPECT_FALSE(graph.nodes()[3].activation);
  EXPECT_THAT(List(graph.parameters_of(2)), ElementsAre(2U, 3U));
  EXPECT_THAT(List(graph.parameters_of(0)), ElementsAre(0U, 1U)) << "modules of other names keep theirs";
}

TEST(SiteGraph, HostileManifestMakesNoEdgesOutOfNothing) {
  SyntheticRun run(2);
  run.topology.edges.push_back({99999, 1});
  run.topology.edges.push_back({3, 99999});
  run.topology.edges.push_back({4, 1});  // backwards: the forward pass has no cycles
  run.topology.sites[2].level = ObservationLevel::kNotObserved;
  run.topology.sites[2].covered_by = 2;  // covers itself
  run.topology.sinks.push_back(12345);
  const SiteGraph graph(run.topology);
  EXPECT_THAT(List(graph.parents(1)), ElementsAre(0U));
  EXPECT_THAT(List(graph.parents(2)), IsEmpty());
}

TEST(SiteGraph, GrowthKnowsWhereEveryNodeCameFrom) {
  SyntheticRun run(2);
  const SiteGraph before(run.topology);
  SiteEntry added = run.topology.sites[0];
  added.id = static_cast<std::uint32_t>(run.topology.sites.size());
  added.name = added.module = "stem";
  added.topological_index = 0;
  run.topology.sites.push_back(added);
  for (std::uint32_t i = 0; i < 5; ++i) run.topology.sites[i].topological_index = i + 1;
  const SiteGraph after(run.topology);
  const GraphGrowth growth = after.GrowthSince(before);
  EXPECT_THAT(growth.node_from, ElementsAre(kNoSite, 0U, 1U, 2U, 3U, 4U));
  std::vector<int> state{10, 11, 12, 13, 14};
  GraphGrowth::Move(growth.node_from, state);
  EXPECT_THAT(state, ElementsAre(0, 10, 11, 12, 13, 14));
}

}  // namespace
}  // namespace neuraldbg
