// A manifest grows while the run does, a restarted rank may be another network, and shared memory may be damaged: state
// that is indexed by site or node must fit its graph after each of them. Runs under AddressSanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/daemon/infer/engine_driver.h"

namespace neuraldbg::testing {
namespace {

constexpr std::uint64_t kWarm = 80;

// The first `sites` of the topology, as the manifest had them when no more was written.
Topology Part(const Topology& whole, std::size_t sites) {
  Topology part = whole;
  part.sites.resize(std::min(sites, whole.sites.size()));
  return part;
}

// One more module that runs before all others, so that every node is numbered anew.
Topology WithModuleInFront(const SyntheticRun& run) {
  Topology grown = run.topology;
  SiteEntry added = grown.sites[0];
  added.id = static_cast<std::uint32_t>(grown.sites.size());
  added.name = added.module = "late";
  added.topological_index = 0;
  for (std::uint32_t i = 0; i < run.node_count(); ++i) ++grown.sites[i].topological_index;
  grown.sites.push_back(added);
  return grown;
}

void EverySiteIsUnhealthy(StepValues& v) {
  v.batch_nan = 1;
  std::fill(v.forward_nan.begin(), v.forward_nan.end(), 1.0F);
  std::fill(v.backward_nan.begin(), v.backward_nan.end(), 1.0F);
  std::fill(v.value_nan.begin(), v.value_nan.end(), 1.0F);
  v.loss = std::numeric_limits<float>::quiet_NaN();
}

bool RestoresItself(const RunEngine& engine) {
  const std::vector<std::byte> snapshot = engine.Snapshot();
  RunEngine other;
  return other.Restore(snapshot) && other.Snapshot() == snapshot;
}

TEST(Growth, ManifestInChunksWhileStepsRun) {
  const SyntheticRun run;
  for (const std::size_t chunk : {1U, 3U, 10U}) {
    EngineDriver driver(run);
    RunEngine engine;
    std::uint64_t step = 0;
    for (std::size_t sites = 0; sites < run.topology.sites.size() + chunk; sites += chunk) {
      engine.SetTopology({}, Part(run.topology, sites));
      EXPECT_TRUE(RestoresItself(engine)) << sites << " sites";
      for (int i = 0; i < 3; ++i) engine.OnFrame(run.Frame(step++));
      EXPECT_TRUE(RestoresItself(engine)) << sites << " sites";
    }
    const std::uint64_t onset = step + kWarm;
    while (step < onset + 10) {
      engine.OnFrame(run.Frame(step++, [&](StepValues& v) {
        if (v.step >= onset) v.forward_gain[run.NodeOf("l2")] += 3;
      }));
    }
    const Diagnosis diagnosis = engine.Diagnose();
    ASSERT_FALSE(diagnosis.hypotheses.empty());
    EXPECT_EQ(diagnosis.hypotheses.front().module, "l2");
    EXPECT_EQ(diagnosis.hypotheses.front().step, onset);
  }
}

TEST(Growth, CauseThatWaitsForItsWeightFollowsTheNodeThatIsNumberedAnew) {
  const SyntheticRun run(4, 8);
  EngineDriver driver(run);
  const auto hook = [&](StepValues& v) {
    if (v.step >= kWarm) v.parameter_level[run.ParameterOf("l2.weight")] += 2;
    if (v.step > kWarm) v.forward_gain[run.NodeOf("l2")] += 2;
  };
  driver.Run(0, kWarm + 3, hook);
  ASSERT_EQ(HypothesisKindName(driver.Lead().kind), "ACTIVATION_SHIFT");
  driver.engine.SetTopology({}, WithModuleInFront(run));
  driver.Run(kWarm + 3, kWarm + 12, hook);
  EXPECT_EQ(HypothesisKindName(driver.Lead().kind), "UPDATE_TOO_LARGE");
  EXPECT_EQ(driver.Lead().module, "l2");
}

TEST(Growth, SmallerManifestOfTheSameIncarnationChangesNothing) {
  const SyntheticRun run;
  EngineDriver driver(run), undisturbed(run);
  driver.Run(0, kWarm);
  driver.Run(kWarm, kWarm + 5, EverySiteIsUnhealthy);
  driver.engine.SetTopology({}, Part(run.topology, 4));
  driver.Run(kWarm + 5, kWarm + 40);
  EXPECT_TRUE(RestoresItself(driver.engine));
  undisturbed.Run(0, kWarm);
  undisturbed.Run(kWarm, kWarm + 5, EverySiteIsUnhealthy);
  undisturbed.Run(kWarm + 5, kWarm + 40);
  EXPECT_EQ(driver.engine.Snapshot(), undisturbed.engine.Snapshot());
}

TEST(Growth, NextIncarnationMayBeASmallerNetwork) {
  const SyntheticRun large(4), small(1);
  EngineDriver driver(large);
  driver.Run(0, kWarm);
  driver.Run(kWarm, kWarm + 5, EverySiteIsUnhealthy);
  const RankKey second{.incarnation = 1};
  driver.engine.SetTopology(second, Part(small.topology, 2));
  driver.engine.SetTopology(second, small.topology);
  for (std::uint64_t step = 0; step < kWarm + 10; ++step) {
    StepFrame frame = small.Frame(step, [&](StepValues& v) {
      if (step >= kWarm) EverySiteIsUnhealthy(v);
    });
    frame.rank = second;
    driver.engine.OnFrame(frame);
  }
  bool told = false;
  for (const Transition& transition : driver.engine.TakeTransitions()) {
    EXPECT_LT(transition.site, small.topology.sites.size());
    told = told || transition.incarnation == 1;
  }
  EXPECT_TRUE(told) << "the second network's sites are watched";
  EXPECT_TRUE(RestoresItself(driver.engine));
}

}  // namespace
}  // namespace neuraldbg::testing
