// Goal: handles go stale quietly; nothing of a session survives destroy, fork or a bad directory; its thread is one and
// ends with it.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/agent/session_fixture.h"
#include "tests/shared/child_process.h"

namespace neuraldbg {
namespace {

using testing::Contents;
using testing::CreateIn;
using testing::Observe;
using testing::ReadBack;
using testing::ScratchDirectory;
using testing::Site;

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

// Ends steps until the heartbeat thread has noticed and the session has moved to another file.
std::string PathAfterRemoval(std::int32_t session, std::uint32_t site, std::uint32_t replacements) {
  ndbg_status status{};
  EXPECT_TRUE(testing::WaitFor([&] {
    ndbg_step step{};
    step.site = site;
    ndbg_session_end_step(session, &step);
    ndbg_session_status(session, &status);
    return status.replacements == replacements;
  }));
  return ndbg_session_path(session);
}

TEST(Session, RemovedFile_IsReplacedAndWhatNobodyReadIsCounted) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path(), "run", 1, 64);
  const ndbg_site tensor = Site("a"), end = Site("step", SiteRole::kStep, Phase::kSystem);
  const std::uint32_t site = ndbg_session_add_site(session, &tensor);
  const std::uint32_t step_site = ndbg_session_add_site(session, &end);
  for (int i = 0; i < 70; ++i) Observe(session, site, {1});  // six more than the lane holds
  const std::string first = ndbg_session_path(session);
  ASSERT_EQ(::unlink(first.c_str()), 0);
  const std::string second = PathAfterRemoval(session, step_site, 1);
  ASSERT_NE(second, first);
  ndbg_status status{};
  ndbg_session_status(session, &status);
  const std::uint64_t before = status.attempts;
  EXPECT_EQ(status.lost, before) << "no daemon was there: all of it";
  EXPECT_EQ(status.dropped, before);
  Observe(session, site, {2});
  ndbg_session_status(session, &status);
  EXPECT_EQ(status.attempts, before + 1);
  EXPECT_EQ(status.dropped, before);
  const Contents contents = ReadBack(second);
  ASSERT_EQ(contents.records.size(), 1u);
  EXPECT_EQ(contents.records[0].tensor.sum, 2.0);
  EXPECT_EQ(contents.dropped, before);
  std::vector<std::string> names;
  for (const ManifestEntry& entry : contents.entries) {
    if (const auto* known = std::get_if<SiteEntry>(&entry)) names.push_back(known->name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a", "step"})) << "the manifest came along";
  ndbg_session_destroy(session);
  EXPECT_EQ(ReadBack(second).owner, OwnerState::kClosed);
}

TEST(Session, RemovedFile_ThatADaemonHoldsLosesNothing) {
  const ScratchDirectory directory;
  const std::int32_t session = CreateIn(directory.path());
  const ndbg_site tensor = Site("a"), end = Site("step", SiteRole::kStep, Phase::kSystem);
  const std::uint32_t site = ndbg_session_add_site(session, &tensor);
  const std::uint32_t step_site = ndbg_session_add_site(session, &end);
  const std::string first = ndbg_session_path(session);
  const int claim = ::open(first.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(claim, LOCK_EX | LOCK_NB), 0);  // as the daemon does
  Observe(session, site, {1});
  ASSERT_EQ(::unlink(first.c_str()), 0);
  const std::string second = PathAfterRemoval(session, step_site, 1);
  ndbg_status status{};
  ndbg_session_status(session, &status);
  EXPECT_EQ(status.lost, 0u);
  EXPECT_EQ(status.dropped, 0u);
  EXPECT_EQ(ReadBack(second).dropped, 0u);
  ::close(claim);
  ndbg_session_destroy(session);
}

// Where no daemon ever comes by, the next job is the only one that can make room.
TEST(Session, Create_RemovesWhatTheDeadLeftAndNothingElse) {
  namespace fs = std::filesystem;
  const ScratchDirectory directory;
  const auto leave = [&](const std::string& name, std::chrono::hours age) {
    std::string path = directory.path() + "/" + name;
    std::ofstream(path) << std::string(8192, 'x');
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
    return path;
  };
  const std::string uid = std::to_string(::geteuid()), hash = ".0123456789abcdef.r0.1.";
  testing::SharedObject<std::array<char, 512>> live;
  testing::ChildProcess other([&]() -> int {
    const std::string path = ndbg_session_path(CreateIn(directory.path(), "other"));
    std::copy(path.begin(), path.end(), live->begin());
    for (;;) ::pause();
  });
  ASSERT_TRUE(testing::WaitFor([&] { return live->front() != 0; }));
  fs::last_write_time(live->data(), fs::file_time_type::clock::now() - std::chrono::hours(48));
  const std::string dead = leave("neuraldbg." + uid + hash + "0", std::chrono::hours(48));
  const std::string unfinished = leave(".neuraldbg.tmp." + uid + ".1.0", std::chrono::hours(1));
  const std::string recent = leave("neuraldbg." + uid + hash + "1", std::chrono::hours(1));
  const std::int32_t session = CreateIn(directory.path());
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(unfinished));
  EXPECT_TRUE(fs::exists(recent)) << "a daemon that comes later wants to know why it died";
  EXPECT_TRUE(fs::exists(live->data())) << "its owner lives";
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
  while (ReadBack(ndbg_session_path(session)).heartbeat == first)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
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

}  // namespace
}  // namespace neuraldbg
