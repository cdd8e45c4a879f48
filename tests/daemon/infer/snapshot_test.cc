// Restore(Snapshot()) at any frame, and the frames that follow, must give bitwise the answers of an engine that was
// never interrupted.
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "tests/daemon/infer/engine_driver.h"

namespace neuraldbg::testing {
namespace {

// A run in which nearly every detector has something to remember.
void Eventful(const SyntheticRun& run, StepValues& v) {
  if (v.step >= 70 && v.step < 80) v.forward_gain[run.NodeOf("l1")] += 3;
  if (v.step >= 95 && v.step < 100) v.backward_gain[run.NodeOf("a2")] -= 8;
  if (v.step >= 110) v.Freeze(run.ParameterOf("l2.weight"), 109);
  if (v.step == 120) v.learning_rate *= 40;
  if (v.step >= 125 && v.step < 128) v.dirty = true;
  if (v.step % 50 == 49) v.applied = false, v.found_inf = true;
  if (v.step >= 60) v.absent[run.NodeOf("a3")] = 1;
  if (v.step >= 140) {
    for (std::uint32_t i = run.NodeOf("a1"); i < run.node_count(); ++i) v.forward_nan[i] = 1;
    v.loss = std::numeric_limits<float>::quiet_NaN();
  }
}

// Every field, in a form that differs for bitwise different numbers.
std::string Text(const Diagnosis& diagnosis, const std::vector<Transition>& transitions) {
  std::ostringstream out;
  out << std::hexfloat << VerdictName(diagnosis.verdict) << diagnosis.warm << diagnosis.steps_seen << '\n';
  for (const Hypothesis& h : diagnosis.hypotheses) {
    out << h.incident << HypothesisKindName(h.kind) << h.module << h.site << h.rank << ' ' << h.step << ' '
        << h.detected_at_step << static_cast<int>(h.phase) << h.confidence << h.summary << h.remedy << '\n';
    for (const Evidence& e : h.evidence)
      out << e.site << e.step << e.observed << e.expected_low << e.expected_high << e.note;
    for (const ChainLink& l : h.chain) out << l.site << l.step << l.share << l.note;
    for (const std::string& e : h.equivalents) out << e;
  }
  for (const BlindSpot& b : diagnosis.blind_spots) out << b.site << b.step << b.text;
  for (const Transition& t : transitions) {
    out << t.id << ' ' << t.step << ' ' << t.site << t.from << t.to << t.value << t.expected_low << t.expected_high
        << '\n';
  }
  return out.str();
}

constexpr std::uint64_t kSteps = 170;

std::string Uninterrupted(const SyntheticRun& run) {
  EngineDriver driver(run);
  driver.Run(0, kSteps, [&](StepValues& v) { Eventful(run, v); });
  return Text(driver.engine.Diagnose(), driver.transitions);
}

TEST(Snapshot, RestartAtAnyFrameChangesNothing) {
  for (const std::uint32_t rotation : {1U, 4U}) {
    const SyntheticRun run(4, rotation);
    const std::string expected = Uninterrupted(run);
    ASSERT_NE(expected.find("FAULT"), std::string::npos);
    for (std::uint64_t cut = 1; cut < kSteps; cut += 7) {
      EngineDriver driver(run);
      driver.Run(0, cut, [&](StepValues& v) { Eventful(run, v); });
      const std::vector<std::byte> snapshot = driver.engine.Snapshot();
      ASSERT_TRUE(driver.engine.Restore(snapshot)) << cut;
      EXPECT_EQ(driver.engine.Snapshot(), snapshot) << "a snapshot of the restored engine is the same snapshot";
      driver.Run(cut, kSteps, [&](StepValues& v) { Eventful(run, v); });
      EXPECT_EQ(Text(driver.engine.Diagnose(), driver.transitions), expected) << "cut at " << cut;
    }
  }
}

TEST(Snapshot, TwoEnginesAgreeBitForBit) {
  const SyntheticRun run;
  EXPECT_EQ(Uninterrupted(run), Uninterrupted(run));
}

TEST(Snapshot, DamagedOrForeignBytesLeaveAFreshEngine) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 80);
  const std::vector<std::byte> good = driver.engine.Snapshot();
  RunEngine other;
  EXPECT_FALSE(other.Restore({}));
  EXPECT_FALSE(other.Restore(std::span(good).first(good.size() - 1)));
  EXPECT_FALSE(other.Restore(std::span(good).first(20)));
  for (std::size_t at = 0; at < good.size(); at += 997) {
    std::vector<std::byte> damaged = good;
    damaged[at] ^= std::byte{0x40};
    EXPECT_FALSE(other.Restore(damaged)) << at;
    EXPECT_EQ(other.Diagnose().steps_seen, 0U);
  }
  EXPECT_TRUE(other.Restore(good));
  EXPECT_EQ(other.Diagnose().steps_seen, 80U);
}

TEST(Snapshot, GrowingTopologyKeepsStateWithItsSite) {
  SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 80);
  Topology grown = run.topology;
  SiteEntry added = grown.sites[0];
  added.id = static_cast<std::uint32_t>(grown.sites.size());
  added.name = added.module = "late";
  added.topological_index = 0;
  grown.sites.push_back(added);
  for (std::uint32_t i = 0; i < run.node_count(); ++i) ++grown.sites[i].topological_index;
  driver.engine.SetTopology({}, grown);
  driver.Run(80, 100, [&](StepValues& v) {
    if (v.step >= 90) v.forward_gain[run.NodeOf("l2")] += 3;
  });
  EXPECT_EQ(driver.Lead().module, "l2");
  EXPECT_EQ(driver.Lead().step, 90U);
}

// Memory is bounded by sites, not by steps.
TEST(Snapshot, SizeDoesNotGrowWithTheRun) {
  const SyntheticRun run;
  EngineDriver driver(run);
  driver.Run(0, 300);
  const std::size_t size = driver.engine.Snapshot().size();
  driver.Run(300, 3000);
  EXPECT_EQ(driver.engine.Snapshot().size(), size);
}

}  // namespace
}  // namespace neuraldbg::testing
