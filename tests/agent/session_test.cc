// Goal: what a session pushes is what a reader gets, with exact accounting. Method: the C interface on one side,
// SegmentReader on the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>
#include <vector>

#include "tests/agent/session_fixture.h"

namespace neuraldbg {
namespace {

using testing::Contents;
using testing::CreateIn;
using testing::Observe;
using testing::ReadBack;
using testing::ScratchDirectory;
using testing::Site;

TEST(Session, Records_ArriveWithTheirContext) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path());
  ndbg_site site = Site("fc:output");
  site.requires_grad = 1;  // the plan; what a record says is what its tensor was
  const std::uint32_t first = ndbg_session_add_site(session, &site);
  const ndbg_site gradient = Site("fc:output.grad", SiteRole::kOutputGradient, Phase::kBackward);
  const std::uint32_t second = ndbg_session_add_site(session, &gradient);
  EXPECT_EQ(first, 0u);
  EXPECT_EQ(second, 1u);
  ndbg_session_context(session, 1, 1, 0);
  Observe(session, first, {1, 2}, kFlagRequiresGrad);
  Observe(session, first, {3});
  ndbg_session_context(session, 0, 0, 1);
  const std::uint8_t evaluation = 1;
  ndbg_session_modes(session, &first, &evaluation, 1);
  Observe(session, first, {4});
  Observe(session, second, {5}, kFlagRecompute);
  Observe(session, first, {6}, kFlagRecompute);
  const std::string path = ndbg_session_path(session);
  const Contents contents = ReadBack(path);
  ASSERT_EQ(contents.records.size(), 5u);
  EXPECT_EQ(contents.records[0].tensor.sum, 3.0);
  EXPECT_EQ(contents.records[0].flags, kFlagTraining | kFlagGradMode | kFlagRequiresGrad);
  EXPECT_EQ(contents.records[0].call, 0u);
  EXPECT_EQ(contents.records[1].call, 1u);
  EXPECT_EQ(contents.records[1].flags, kFlagTraining | kFlagGradMode) << "detached";
  EXPECT_EQ(contents.records[2].call, 0u);
  EXPECT_EQ(contents.records[2].microbatch, 1u);
  EXPECT_EQ(contents.records[2].flags, kFlagModuleEval);
  EXPECT_EQ(contents.records[3].phase, Phase::kBackward);
  EXPECT_EQ(contents.records[3].site, second);
  EXPECT_EQ(contents.records[3].flags & kFlagRecompute, 0) << "a gradient is no second forward pass";
  EXPECT_EQ(contents.records[4].flags & kFlagRecompute, kFlagRecompute);
  ndbg_session_destroy(session);
}

struct Calls {
  std::uint32_t first, glue, second;
};

// Sites of a module that runs twice in a pass, `glue` being the input of its second run.
Calls AddCalls(std::int32_t session, const char* name, Phase phase) {
  const ndbg_site site = Site(name, SiteRole::kOutput, phase);
  const std::uint32_t first = ndbg_session_add_site(session, &site);
  const std::uint32_t glue = ndbg_session_add_site(session, &site);
  return {first, glue, ndbg_session_add_site(session, &site)};
}

TEST(Session, Calls_OfOnePassReportAsSitesOfTheirOwn) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path());
  const Calls forward = AddCalls(session, "m", Phase::kForward), backward = AddCalls(session, "g", Phase::kBackward);
  const std::uint32_t outputs[] = {forward.first, forward.second}, inputs[] = {kNoSite, forward.glue};
  const std::uint32_t gradients[] = {backward.first, backward.second};
  EXPECT_EQ(ndbg_session_calls(session, forward.first, kNoSite, outputs, 2), 1u);
  EXPECT_EQ(ndbg_session_calls(session, forward.glue, kNoSite, inputs, 2), 1u);
  EXPECT_EQ(ndbg_session_calls(session, backward.first, forward.first, gradients, 2), 1u);
  std::vector<std::uint32_t> expected;
  for (const int calls : {2, 1, 3}) {  // a pass that skipped the second run, and one with a run more than planned
    ndbg_session_context(session, 1, 1, 0);
    for (int call = 0; call < calls; ++call) {
      Observe(session, forward.glue, {0});
      Observe(session, forward.first, {0});
      if (call == 1) expected.push_back(forward.glue);
      expected.push_back(call == 1 ? forward.second : forward.first);
    }
    for (int call = 0; call < std::min(calls, 2); ++call) Observe(session, backward.first, {0});
    if (calls > 1) expected.push_back(backward.second);
    expected.push_back(backward.first);
  }
  std::vector<std::uint32_t> seen;
  for (const Record& record : ReadBack(ndbg_session_path(session)).records) seen.push_back(record.site);
  EXPECT_EQ(seen, expected);
  ndbg_session_destroy(session);
}

TEST(Session, Calls_WithWrongArgumentsAreRefused) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path());
  const Calls calls = AddCalls(session, "m", Phase::kForward);
  const std::vector<std::uint32_t> sites(17, calls.first), unknown{calls.first, 99};
  EXPECT_EQ(ndbg_session_calls(session, calls.first, kNoSite, sites.data(), 17), 0u);
  EXPECT_EQ(ndbg_session_calls(session, calls.first, kNoSite, sites.data(), 0), 0u);
  EXPECT_EQ(ndbg_session_calls(session, calls.first, kNoSite, unknown.data(), 2), 0u);
  EXPECT_EQ(ndbg_session_calls(session, 99, kNoSite, sites.data(), 2), 0u);
  EXPECT_EQ(ndbg_session_calls(session, calls.second, calls.first, sites.data(), 2), 0u) << "no forward calls yet";
  EXPECT_EQ(ndbg_session_calls(session, calls.first, kNoSite, nullptr, 2), 0u);
  ndbg_session_destroy(session);
}

TEST(Session, StepRecord_CountsEveryAttemptUpToItself) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path(), "run", 2, 64);
  const ndbg_site site = Site("a");
  ndbg_session_add_site(session, &site);
  ndbg_step step{};
  step.applied = 1;
  step.cadence = 3;
  for (std::uint64_t n = 0; n < 4; ++n) {
    for (int i = 0; i < 5; ++i) Observe(session, 0, {1});
    std::thread([&] { Observe(session, 0, {2}); }).join();
    EXPECT_EQ(ndbg_session_step(session), n);
    EXPECT_EQ(ndbg_session_end_step(session, &step), n);
  }
  const Contents contents = ReadBack(ndbg_session_path(session));
  std::uint64_t seen = 0;
  std::map<std::uint64_t, std::uint64_t> per_step;
  for (const Record& record : contents.records) {
    ++per_step[record.step];
    ++seen;
    if (record.kind != RecordKind::kStep) continue;
    EXPECT_EQ(record.step_end.attempts_total, (record.step + 1) * 7);
    EXPECT_EQ(record.step_end.dropped_total, 0u);
    EXPECT_EQ(record.step_end.cadence_phase, record.step % 3);
    EXPECT_EQ(record.flags & kFlagStepApplied, kFlagStepApplied);
    EXPECT_GT(record.validity, 0u);
  }
  EXPECT_EQ(seen, 28u);
  for (const auto& [number, count] : per_step) EXPECT_EQ(count, 7u) << number;
  ndbg_session_destroy(session);
}

TEST(Session, FullRing_DropsAreCountedAndStepsStillAddUp) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path(), "run", 1, 64);
  const ndbg_site site = Site("a");
  ndbg_session_add_site(session, &site);
  for (int i = 0; i < 100; ++i) Observe(session, 0, {1});
  ndbg_step step{};
  ndbg_session_end_step(session, &step);
  ndbg_status status{};
  ndbg_session_status(session, &status);
  EXPECT_EQ(status.attempts, 101u);
  const Contents contents = ReadBack(ndbg_session_path(session));
  EXPECT_EQ(contents.records.size() + contents.dropped, 101u);
  EXPECT_EQ(status.dropped, contents.dropped);
  EXPECT_EQ(status.step, 1u);
  ndbg_session_destroy(session);
}

TEST(Session, StartStep_IsWhereCountingBegins) {
  const ScratchDirectory directory;
  ndbg_session_options options{};
  options.shm_directory = directory.path().c_str();
  options.run_name = "resumed";
  options.launch = "l";
  options.start_step = 500;
  const std::int32_t session = ndbg_session_create(&options, nullptr, 0);
  ASSERT_GE(session, 0);
  const ndbg_site site = Site("a");
  ndbg_session_add_site(session, &site);
  ndbg_step step{};
  EXPECT_EQ(ndbg_session_end_step(session, &step), 500u);
  EXPECT_EQ(ndbg_session_step(session), 501u);
  ndbg_session_destroy(session);
}

TEST(Session, Manifest_HoldsWhatWasAnnounced) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path(), "gpt-7");
  ndbg_site site = Site("fc:output");
  const std::uint64_t shape[] = {4, 8};
  site.shape = shape;
  site.dimensions = 2;
  ndbg_session_add_site(session, &site);
  site.level = static_cast<std::uint32_t>(ObservationLevel::kEager);
  EXPECT_EQ(ndbg_session_update_site(session, 0, &site), 0u);
  EXPECT_EQ(ndbg_session_update_site(session, 9, &site), kNoSite);
  site.role = 99;
  EXPECT_EQ(ndbg_session_add_site(session, &site), kNoSite) << "a reader would reject it";
  ndbg_session_add_edge(session, 0, 0);
  ndbg_session_add_sink(session, 0);
  ndbg_session_add_mark(session, 3, "lr changed");
  ndbg_session_ready(session, 1, 12, 34);
  const Contents contents = ReadBack(ndbg_session_path(session));
  ASSERT_EQ(contents.entries.size(), 8u);
  const RunEntry& run = std::get<RunEntry>(contents.entries[6]);
  EXPECT_EQ(run.run_name, "gpt-7");
  EXPECT_TRUE(run.graph_exact);
  EXPECT_EQ(run.planned_sites, 12u);
  EXPECT_EQ(run.parameter_count, 34u);
  EXPECT_EQ(std::get<SiteEntry>(contents.entries[1]).shape, std::vector<std::uint64_t>({4, 8}));
  EXPECT_EQ(std::get<SiteEntry>(contents.entries[2]).level, ObservationLevel::kEager);
  EXPECT_EQ(std::get<MarkEntry>(contents.entries[5]).text, "lr changed");
  EXPECT_TRUE(std::holds_alternative<ReadyEntry>(contents.entries[7]));
  ndbg_session_destroy(session);
}

TEST(Session, Status_CountsNonfiniteRecordsAndAgentTime) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path());
  const ndbg_site site = Site("a");
  ndbg_session_add_site(session, &site);
  Observe(session, 0, {1, NAN, NAN});
  Observe(session, 0, {1});
  {
    const SessionUse use(session);
    use->AddAgentTime(1000);
  }
  ndbg_status status{};
  ndbg_session_status(session, &status);
  EXPECT_EQ(status.records_this_step, 2u);
  EXPECT_EQ(status.nonfinite_this_step, 1u);
  EXPECT_EQ(status.agent_ns, 1000u);
  EXPECT_EQ(status.enabled, 1u);
  ndbg_step step{};
  ndbg_session_end_step(session, &step);
  ndbg_session_status(session, &status);
  EXPECT_EQ(status.nonfinite_this_step, 0u);
  EXPECT_EQ(status.nonfinite_total, 1u);
  EXPECT_EQ(status.agent_ns, 1000u) << "the total is what a caller takes differences of";
  const Contents contents = ReadBack(ndbg_session_path(session));
  EXPECT_EQ(contents.records.back().step_end.agent_ns, 1000u);
  ndbg_session_destroy(session);
}

TEST(Session, OptimizerRecord_TakesItsSumsFromTheObservedParameters) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path());
  const ndbg_site group = Site("optimizer[0]", SiteRole::kOptimizer, Phase::kOptimizer);
  const std::uint32_t optimizer = ndbg_session_add_site(session, &group);
  ndbg_site parameter = Site("fc.weight", SiteRole::kParameter, Phase::kParameter);
  parameter.optimizer_group = 0;
  const std::uint32_t weight = ndbg_session_add_site(session, &parameter);
  ndbg_optimizer record{};
  record.site = optimizer;
  record.learning_rate = 0.1;
  record.applied = 1;
  ndbg_session_optimizer(session, &record);  // nothing observed yet
  std::vector<float> value{1, 1};
  const std::int64_t size = 2, stride = 1;
  const TensorView view{value.data(), DType::kFloat32, 1, 2, &size, &stride};
  {
    const SessionUse use(session);
    use->ParameterBefore(weight, view, &view, true);
    value[0] = 3;
    use->ParameterAfter(weight, view);
  }
  ndbg_session_optimizer(session, &record);
  const Contents contents = ReadBack(ndbg_session_path(session));
  ASSERT_EQ(contents.records.size(), 3u);
  EXPECT_EQ(contents.records[0].validity & (ValidityBit(3) | ValidityBit(4)), 0u);
  EXPECT_EQ(contents.records[1].kind, RecordKind::kParameter);
  EXPECT_EQ(contents.records[1].flags & kFlagGradPresent, kFlagGradPresent);
  EXPECT_EQ(contents.records[2].optimizer.update_sum_squares, 4.0);
  EXPECT_EQ(contents.records[2].optimizer.gradient_sum_squares, 2.0);
  EXPECT_EQ(contents.records[2].optimizer.observed_count, 1u);
  EXPECT_EQ(contents.records[2].flags & kFlagStepApplied, kFlagStepApplied);
  ndbg_session_destroy(session);
}

}  // namespace
}  // namespace neuraldbg
