// What becomes of segment files: those that jobs leave, those that somebody removes, those of another release.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "shared/ring_layout.h"
#include "tests/daemon/app/daemon_fixture.h"
#include "tests/daemon/http/http_client.h"

namespace neuraldbg {
namespace {

namespace fs = std::filesystem;

class SegmentsTest : public DaemonFixture {
 protected:
  static void Age(const std::string& path) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(48));
  }
  std::string Leave(const std::string& name) {
    std::ofstream(shm() + "/" + name) << std::string(8192, 'x');
    Age(shm() + "/" + name);
    return shm() + "/" + name;
  }
  static std::size_t Times(const std::string& text, const std::string& part) {
    std::size_t times = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
    return times;
  }
  void LeaveGarbage(int files) {
    for (int i = 0; i < files; ++i) {
      std::ofstream(shm() + "/neuraldbg.0.0123456789abcdef.r" + std::to_string(i) + ".1.0") << std::string(5000, 'x');
    }
  }
  std::string OnlySegment() {
    std::string path;
    for (const auto& entry : fs::directory_iterator(shm())) path = entry.path();
    return path;
  }
  std::string Status(const std::vector<std::string>& more) { return Ask("status", more); }
  std::string Ask(const std::string& verb, const std::vector<std::string>& more) {
    std::vector<std::string> command = {NEURALDBGCTL_PATH, verb, "--address", "unix:" + socket(), "--data-dir", data()};
    command.insert(command.end(), more.begin(), more.end());
    ChildProcess ctl(command, shm() + "/../said",
                     {"HOME=" + data(), "PATH=/usr/bin:/bin", "NEURALDBG_SHM_DIR=" + shm()});
    std::string said = ctl.ReadAll();
    EXPECT_EQ(ctl.Wait(), 0) << said;
    return said;
  }
};

TEST_F(SegmentsTest, TwoHundredShortRuns_LeaveNothing) {
  const auto daemon = StartDaemon();
  AwaitServing();
  for (int i = 0; i < 200; ++i) {
    const auto producer = StartProducer({"short", "3", "0", "1000", i % 2 == 0 ? "close" : "die"});
    if (i % 10 == 9) producer->Signal(SIGKILL);  // anywhere between its start and its end
    producer->Wait();
  }
  Await("the segments to be removed", [this] {
    for (const auto& entry : fs::directory_iterator(shm())) {
      if (!entry.path().filename().string().starts_with(".neuraldbg.tmp.")) return false;
    }
    return true;
  });
  EXPECT_TRUE(daemon->Running());
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->Wait(), 0);
  // What a kill during creation left is too young to be told from a creation that goes on.
  for (const auto& entry : fs::directory_iterator(shm())) Age(entry.path());
  const auto next = StartDaemon();
  Await("unfinished files to be removed", [this] { return fs::is_empty(shm()); });
}

TEST_F(SegmentsTest, LeftoversOfTheDead_AreRemovedAtTheStart_AndALiveOneNever) {
  const std::string uid = std::to_string(::geteuid());
  const std::string unfinished = Leave(".neuraldbg.tmp." + uid + ".1.0");
  const std::string dead = Leave("neuraldbg." + uid + ".0123456789abcdef.r0.1.0");
  const std::string foreign = Leave("somebody.elses");
  const auto producer = StartProducer({"live", "1000000", "1000"});
  producer->ReadLine();
  producer->Signal(SIGSTOP);
  std::string live;
  for (const auto& entry : fs::directory_iterator(shm())) {
    if (entry.path() != unfinished && entry.path() != dead && entry.path() != foreign) live = entry.path();
  }
  ASSERT_FALSE(live.empty());
  Age(live);
  const auto daemon = StartDaemon();
  AwaitServing();
  Await("the leftovers to be removed", [&] { return !fs::exists(unfinished) && !fs::exists(dead); });
  EXPECT_TRUE(fs::exists(live)) << "its owner stands still, and lives";
  EXPECT_TRUE(fs::exists(foreign));
  EXPECT_NE(errors().find("removed 1 segments and 1 unfinished files"), std::string::npos) << errors();
  producer->Signal(SIGCONT);
}

TEST_F(SegmentsTest, RemovedUnderARunningJob_IsSaidOnceAndDrainedToItsEnd) {
  const auto daemon = StartDaemon();
  AwaitServing();
  const auto producer = StartProducer({"removed", "300", "2000", "1000", "close"});
  for (int line = 0; line < 20; ++line) producer->ReadLine();
  Await("the run", [this] {
    const auto reader = OpenStore();
    return reader != nullptr && reader->FindRun("removed").ok();
  });
  fs::remove(OnlySegment());
  EXPECT_EQ(producer->Wait(), 0);
  AwaitRunState("removed", RunState::kFinished);
  const auto reader = OpenStore();
  EXPECT_EQ(reader->FindRun("removed")->steps_seen, 300u);
  const std::string log = errors();
  const std::size_t said = log.find("was removed by somebody else");
  ASSERT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find("was removed by somebody else", said + 1), std::string::npos) << log;
  EXPECT_TRUE(daemon->Running());
}

TEST_F(SegmentsTest, OfAnotherRelease_AreRefusedWithBothVersionsInLogStatusAndMetrics) {
  EXPECT_EQ(StartProducer({"foreign", "5", "0", "1000", "die"})->Wait(), 0);
  const std::uint16_t other = kLayoutMajor + 8;
  std::fstream(OnlySegment(), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(offsetof(SegmentHeader, major))
      .write(reinterpret_cast<const char*>(&other), sizeof other);
  const auto daemon = StartDaemon();
  AwaitServing();
  const std::string other_version = std::to_string(other) + "." + std::to_string(kLayoutMinor);
  const std::string own_version = std::to_string(kLayoutMajor) + "." + std::to_string(kLayoutMinor);
  const std::string theirs = "segment layout " + other_version + ",", ours = "reads layout " + own_version + ".";
  Await("the refusal", [&] { return errors().find(theirs) != std::string::npos; });
  StartProducer({"beside", "20", "0", "1000", "close"})->Wait();
  AwaitRunState("beside", RunState::kFinished);
  const std::string log = errors();
  EXPECT_NE(log.find(ours), std::string::npos) << log;
  EXPECT_EQ(log.find(theirs, log.find(theirs) + 1), std::string::npos) << "said once: " << log;
  for (const std::vector<std::string>& format : {std::vector<std::string>{}, {"-o", "json"}}) {
    const std::string status = Status(format);
    EXPECT_NE(status.find(theirs), std::string::npos) << status;
    EXPECT_NE(status.find(ours), std::string::npos) << status;
    EXPECT_EQ(Times(status, "nstall the same release"), 1u) << status;
  }
  const std::string metrics = HttpGet(http(), "/metrics");
  EXPECT_NE(metrics.find("\nneuraldbg_segments_refused_total{reason=\"version\"} 1\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\nneuraldbg_segment_version_skew_info{segment_layout=\"" + other_version +
                         "\",daemon_layout=\"" + own_version + "\"} 1\n"),
            std::string::npos)
      << metrics;
}

TEST_F(SegmentsTest, FilesThatAreNoSegments_AreCountedByStatusAndDoctorAndNamedByTheLog) {
  LeaveGarbage(16);
  const auto daemon = StartDaemon();
  AwaitServing();
  Await("all to be named", [this] { return Times(errors(), " is left alone: ") == 16; });
  const std::string counted =
      "16 files in " + shm() +
      " have the name of a segment and are left alone: magic 16. The log of the daemon names them";
  EXPECT_EQ(Times(Status({}), counted), 1u) << Status({});
  EXPECT_NE(Status({"-o", "json"}).find("\"SEGMENT_LEFT_ALONE\""), std::string::npos);
  const std::string doctor = Ask("doctor", {"-o", "json"});
  EXPECT_NE(doctor.find("16 files in "), std::string::npos) << doctor;
}

TEST_F(SegmentsTest, LinesThatTheLogLeavesOut_AreCountedAtTheEnd) {
  LeaveGarbage(70);
  const auto daemon = StartDaemon();
  AwaitServing();
  Await("all to be looked at", [this] { return Status({}).find("70 files in ") != std::string::npos; });
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->Wait(), 0);
  EXPECT_EQ(Times(errors(), " is left alone: "), 64u) << errors();
  EXPECT_EQ(Times(errors(), "6 more such lines were left out: files that are left alone"), 1u) << errors();
}

TEST_F(SegmentsTest, EveryRankThatCameAndWent_IsInTheLog) {
  constexpr int kRanks = 16;
  const auto daemon = StartDaemon();
  AwaitServing();
  for (int i = 0; i < kRanks; ++i) StartProducer({"run" + std::to_string(i), "3", "0", "1000", "close"})->Wait();
  Await("the last to end", [this] { return errors().find("run15: rank 0 finished") != std::string::npos; });
  EXPECT_EQ(Times(errors(), " draining "), kRanks) << errors();
  EXPECT_EQ(Times(errors(), ": rank 0 finished"), kRanks) << errors();
}

}  // namespace
}  // namespace neuraldbg
