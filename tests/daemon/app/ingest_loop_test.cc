// Everything between shared memory and the store in one process that a sanitizer watches, with jobs that end, die and
// are killed, garbage beside them, and ingest loops that stop in the middle of it all. The gRPC server is not here.
#include "daemon/app/ingest_loop.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/app/daemon_fixture.h"

namespace neuraldbg {
namespace {

// One life of a daemon, without its server.
class Life {
 public:
  Life(const std::string& shm, const std::string& data, SegmentAccess access = {}) : store_(Store::Open(data)) {
    if (!store_.ok()) return;
    IngestOptions options;
    options.watcher = {.directory = shm, .access = access};
    options.warnings = &warnings_;
    loop_.emplace(**store_, feed_, options);
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~Life() {
    if (!loop_) return;
    loop_->Stop();
    thread_.join();
    feed_.Close();
  }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;
  absl::Status status() const { return store_.status(); }
  std::vector<DaemonWarning> warnings() const { return warnings_.Current(); }
  std::uint64_t refused(Errc code) const {
    return loop_->counters().segments_refused[static_cast<std::size_t>(code)].load();
  }

 private:
  absl::StatusOr<std::unique_ptr<Store>> store_;
  EventFeed feed_;
  DaemonWarnings warnings_;
  std::optional<IngestLoop> loop_;
  std::thread thread_;
};

class IngestLoopTest : public DaemonFixture {};

TEST_F(IngestLoopTest, JobsThatEndDieAndAreKilled_AcrossLivesOfTheDaemon) {
  constexpr int kJobs = 12, kLives = 6;
  std::ofstream(shm() + "/neuraldbg.0.0123456789abcdef.r0.1.0") << std::string(5000, 'x');
  std::vector<std::unique_ptr<ChildProcess>> jobs;
  for (int life = 0; life < kLives; ++life) {
    const Life daemon(shm(), data());
    ASSERT_TRUE(daemon.status().ok()) << daemon.status();
    for (int job = 0; job < kJobs / kLives; ++job) {
      const std::string number = std::to_string(jobs.size());
      jobs.push_back(StartProducer({"run" + number, "200", "2000", "100", jobs.size() % 3 == 0 ? "die" : "close"}));
      jobs.back()->ReadLine();
    }
    for (int line = 0; line < 20; ++line) jobs.back()->ReadLine();
    if (life % 2 == 1) jobs.back()->Signal(SIGKILL);
  }
  const auto last = std::make_unique<Life>(shm(), data());
  ASSERT_TRUE(last->status().ok()) << last->status();
  for (const auto& job : jobs) job->Wait();
  for (int job = 0; job < kJobs; ++job) {
    const bool killed = job % 4 == 3, died = killed || job % 3 == 0;
    const std::string name = "run" + std::to_string(job);
    AwaitRunState(name, died ? RunState::kDied : RunState::kFinished);
    const auto reader = OpenStore();
    const StoredRank rank = reader->ListRanks(reader->FindRun(name)->id)->at(0);
    EXPECT_EQ(rank.records_received, rank.records_produced) << name;
    if (killed) continue;
    const std::vector<StepFrame> frames = reader->ReadFrames(rank.key, 0, UINT64_MAX).value();
    EXPECT_EQ(frames.size(), 200u) << name;
    for (const StepFrame& frame : frames) {
      EXPECT_TRUE(frame.complete && frame.records_received == 9) << name << " step " << frame.step;
    }
    EXPECT_EQ(reader->GetDiagnosis(reader->FindRun(name)->id)->verdict, Verdict::FAULT) << name;
  }
}

TEST_F(IngestLoopTest, SegmentsOfOtherUsers_AreCountedAndNoWarning) {
  std::ofstream(shm() + "/neuraldbg.0.0123456789abcdef.r0.1.0") << std::string(5000, 'x');
  const Life daemon(shm(), data(), {.uid = ::getuid() + 1, .gid = {}});
  ASSERT_TRUE(daemon.status().ok()) << daemon.status();
  Await("the file to be seen", [&] { return daemon.refused(Errc::kBadOwner) == 1; });
  std::ofstream(shm() + "/neuraldbg.0.0123456789abcdef.r1.1.0") << "x";
  Await("the next one, after all was done about the first", [&] { return daemon.refused(Errc::kBadOwner) == 2; });
  EXPECT_TRUE(daemon.warnings().empty());
}

TEST(LogLimiterTest, LinesLeftOut_AreToldOnceTheirWindowIsOver) {
  LogLimiter limiter;
  const LogLimiter::Clock::time_point start{std::chrono::hours(1)};
  int passed = 0;
  for (int i = 0; i < 5; ++i) passed += limiter.Allow("a", 2, start) ? 1 : 0;
  EXPECT_EQ(passed, 2);
  EXPECT_TRUE(limiter.Allow("b", 2, start));
  EXPECT_TRUE(limiter.TakeLeftOut(start + std::chrono::seconds(59)).empty());
  const std::vector<std::string> said = limiter.TakeLeftOut(start + LogLimiter::kWindow);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0], "3 more such lines were left out: a");
  EXPECT_TRUE(limiter.TakeAllLeftOut().empty());
  EXPECT_TRUE(limiter.Allow("a", 2, start + LogLimiter::kWindow));
}

}  // namespace
}  // namespace neuraldbg
