// Goal: what a session pushes is what a reader gets, with exact accounting; handles go stale quietly; nothing survives
// destroy, fork or a bad directory. Method: the C interface on one side, SegmentReader on the other.
#include "agent/src/rank_session.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include "agent/src/capi.h"
#include "agent/src/session_table.h"
#include "shared/ring_reader.h"
#include "tests/shared/scratch_directory.h"

namespace neuraldbg {
namespace {

using testing::ScratchDirectory;

std::int32_t CreateIn(const std::string& directory, const char* run = "run", std::uint32_t lanes = 0,
                      std::uint32_t capacity = 0) {
  ndbg_session_options options{};
  options.shm_directory = directory.c_str();
  options.run_name = run;
  options.launch = "launch";
  options.host = "host";
  options.framework = "none";
  options.world_size = 1;
  options.lanes = lanes;
  options.lane_capacity = capacity;
  char error[256] = "";
  const std::int32_t session = ndbg_session_create(&options, error, sizeof error);
  EXPECT_GE(session, 0) << error;
  return session;
}

ndbg_site Site(const char* name, SiteRole role = SiteRole::kOutput, Phase phase = Phase::kForward) {
  ndbg_site site{};
  site.name = name;
  site.module = name;
  site.module_kind = "Linear";
  site.owner = "";
  site.role = static_cast<std::uint32_t>(role);
  site.phase = static_cast<std::uint32_t>(phase);
  site.dtype = static_cast<std::uint32_t>(DType::kFloat32);
  site.twin = site.covered_by = site.optimizer_group = kNoSite;
  return site;
}

void Observe(std::int32_t session, std::uint32_t site, const std::vector<float>& values) {
  const auto size = static_cast<std::int64_t>(values.size());
  const std::int64_t stride = 1;
  const SessionUse use(session);
  if (!use || !use->armed()) return;
  use->ObserveTensor(site, {values.data(), DType::kFloat32, 1, values.size(), &size, &stride}, RecordKind::kTensor);
}

struct Contents {
  std::vector<Record> records;
  std::vector<ManifestEntry> entries;
  std::uint64_t dropped = 0;
  OwnerState owner = OwnerState::kDead;
  std::uint64_t heartbeat = 0;
};

Contents ReadBack(const std::string& path) {
  Contents contents;
  auto reader = SegmentReader::Attach(path);
  EXPECT_TRUE(reader.ok()) << path << ": " << reader.error().message;
  if (!reader.ok()) return contents;
  SegmentReader& segment = *reader.value();
  EXPECT_EQ(segment.manifest().Poll([&](const ManifestEntry& entry) { contents.entries.push_back(entry); }).code, Errc::kOk);
  while (segment.Drain([&](std::uint32_t, std::span<const Record> records) {
    contents.records.insert(contents.records.end(), records.begin(), records.end());
  }) != 0) {
  }
  contents.dropped = segment.dropped_total();
  contents.owner = segment.owner_state();
  contents.heartbeat = segment.heartbeat_ns();
  return contents;
}

int ThreadsNamed(const std::string& name) {
  int found = 0;
  DIR* directory = opendir("/proc/self/task");
  while (const dirent* entry = readdir(directory)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string line;
    if (std::getline(file, line) && line == name) ++found;
  }
  closedir(directory);
  return found;
}

TEST(Session, Records_ArriveWithTheirContext) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path());
  ndbg_site site = Site("fc:output");
  site.requires_grad = 1;
  const std::uint32_t first = ndbg_session_add_site(session, &site);
  const ndbg_site gradient = Site("fc:output.grad", SiteRole::kOutputGradient, Phase::kBackward);
  const std::uint32_t second = ndbg_session_add_site(session, &gradient);
  EXPECT_EQ(first, 0u);
  EXPECT_EQ(second, 1u);
  ndbg_session_context(session, 1, 1, 0);
  Observe(session, first, {1, 2});
  Observe(session, first, {3});
  ndbg_session_context(session, 0, 0, 1);
  Observe(session, first, {4});
  Observe(session, second, {5});
  const std::string path = ndbg_session_path(session);
  const Contents contents = ReadBack(path);
  ASSERT_EQ(contents.records.size(), 4u);
  EXPECT_EQ(contents.records[0].tensor.sum, 3.0);
  EXPECT_EQ(contents.records[0].flags, kFlagTraining | kFlagGradMode | kFlagRequiresGrad);
  EXPECT_EQ(contents.records[0].call, 0u);
  EXPECT_EQ(contents.records[1].call, 1u);
  EXPECT_EQ(contents.records[2].call, 0u);
  EXPECT_EQ(contents.records[2].microbatch, 1u);
  EXPECT_EQ(contents.records[2].flags, kFlagRequiresGrad);
  EXPECT_EQ(contents.records[3].phase, Phase::kBackward);
  EXPECT_EQ(contents.records[3].site, second);
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

TEST(Session, StaleAndUnknownHandles_DoNothing) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path());
  const ndbg_site site = Site("a");
  ndbg_session_add_site(session, &site);
  Observe(session, 0, {1});
  Observe(session, 77, {1});  // no such site
  const std::string path = ndbg_session_path(session);
  ndbg_session_destroy(session);
  ndbg_session_destroy(session);
  for (const std::int32_t handle : {session, -1, session + 1, kMaxSessions, 0x7fffffff}) {
    Observe(handle, 0, {1});
    ndbg_step step{};
    EXPECT_EQ(ndbg_session_end_step(handle, &step), 0u);
    EXPECT_EQ(ndbg_session_add_site(handle, &site), kNoSite);
    EXPECT_STREQ(ndbg_session_path(handle), "");
    ndbg_session_arm(handle, 1);
    ndbg_session_destroy(handle);
  }
  const Contents contents = ReadBack(path);
  EXPECT_EQ(contents.records.size(), 1u);
  EXPECT_EQ(contents.owner, OwnerState::kClosed);
  const std::int32_t next = CreateIn(directory.path(), "other");
  EXPECT_GT(next, session) << "a handle was reused: old graphs would write into the new run";
  ndbg_session_destroy(next);
}

TEST(Session, TwoSessionsInOneProcess_KeepTheirRecordsApart) {
  const ScratchDirectory directory;
  const std::int32_t a = CreateIn(directory.path(), "a"), b = CreateIn(directory.path(), "b");
  const ndbg_site site = Site("x");
  ndbg_session_add_site(a, &site);
  ndbg_session_add_site(b, &site);
  for (int i = 0; i < 3; ++i) {
    Observe(a, 0, {1});
    Observe(b, 0, {2, 2});
  }
  ndbg_session_arm(b, 0);
  Observe(b, 0, {3});
  Observe(a, 0, {1});
  for (const Record& record : ReadBack(ndbg_session_path(a)).records) EXPECT_EQ(record.tensor.numel, 1u);
  EXPECT_EQ(ReadBack(ndbg_session_path(a)).records.size(), 4u);
  for (const Record& record : ReadBack(ndbg_session_path(b)).records) EXPECT_EQ(record.tensor.numel, 2u);
  EXPECT_EQ(ReadBack(ndbg_session_path(b)).records.size(), 3u);
  ndbg_session_destroy(a);
  ndbg_session_destroy(b);
}

TEST(Session, UnusableDirectory_IsOneSentence) {
  ndbg_session_options options{};
  options.shm_directory = "/nonexistent/shm";
  options.run_name = "r";
  options.launch = "l";
  char error[200] = "";
  EXPECT_EQ(ndbg_session_create(&options, error, sizeof error), -1);
  EXPECT_NE(std::string(error).find("/nonexistent/shm"), std::string::npos) << error;
  EXPECT_NE(std::string(error).find("No such file"), std::string::npos) << error;
  char small[8];
  EXPECT_EQ(ndbg_session_create(&options, small, sizeof small), -1);
  EXPECT_EQ(std::string(small).size(), 7u);
  EXPECT_EQ(ndbg_session_create(nullptr, error, sizeof error), -1);
}

TEST(Session, HeartbeatThread_IsOne_AndEndsWithTheSession) {
  const ScratchDirectory directory;
  EXPECT_EQ(ThreadsNamed("neuraldbg"), 0);
  const std::int32_t session = CreateIn(directory.path());
  // The thread names itself a moment after it started; the watchdog is ctest's.
  while (ThreadsNamed("neuraldbg") == 0) std::this_thread::yield();
  EXPECT_EQ(ThreadsNamed("neuraldbg"), 1);
  std::uint64_t first = 0;
  while ((first = ReadBack(ndbg_session_path(session)).heartbeat) == 0) std::this_thread::yield();
  while (ReadBack(ndbg_session_path(session)).heartbeat == first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ndbg_session_destroy(session);
  EXPECT_EQ(ThreadsNamed("neuraldbg"), 0);
}

TEST(Session, ForkedChild_IsSilent_AndMayAttachAnew) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path());
  const ndbg_site site = Site("a");
  ndbg_session_add_site(session, &site);
  Observe(session, 0, {1});
  const pid_t child = fork();
  if (child == 0) {
    Observe(session, 0, {9});
    ndbg_step step{};
    ndbg_session_end_step(session, &step);
    ndbg_session_destroy(session);
    const std::int32_t own = CreateIn(directory.path(), "child");
    ndbg_session_add_site(own, &site);
    Observe(own, 0, {5});
    const bool arrived = ReadBack(ndbg_session_path(own)).records.size() == 1;
    ndbg_session_destroy(own);
    _exit(arrived ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  Observe(session, 0, {2});
  const Contents contents = ReadBack(ndbg_session_path(session));
  EXPECT_EQ(contents.records.size(), 2u);
  EXPECT_EQ(contents.owner, OwnerState::kAlive);
  ndbg_session_destroy(session);
}

TEST(Session, DestroyUnderLoad_LosesNothingBeforeAndCrashesNothingAfter) {
  const ScratchDirectory directory;
  for (int round = 0; round < 20; ++round) {
    const std::int32_t session = CreateIn(directory.path(), "loaded", 4, 1024);
    const ndbg_site site = Site("a");
    ndbg_session_add_site(session, &site);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        const std::vector<float> values(100, 1.0f);
        while (!stop.load()) Observe(session, 0, values);
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ndbg_session_destroy(session);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop.store(true);
    for (std::thread& thread : threads) thread.join();
  }
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
