// A disk that fills up under the daemon and has room again later: said once, and nothing is lost.
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/daemon/app/daemon_fixture.h"

namespace neuraldbg {
namespace {

constexpr std::uint64_t kSteps = 1500;  // all of them fit into the ring

class FullDiskTest : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    std::filesystem::create_directory(data());
    mounted_ = ::mount("tmpfs", data().c_str(), "tmpfs", 0, "size=16m,mode=0700") == 0;
    if (!mounted_) GTEST_SKIP() << "mounting a small file system needs root: " << std::strerror(errno);
  }
  void TearDown() override {
    if (mounted_) ::umount2(data().c_str(), MNT_DETACH);
    DaemonFixture::TearDown();
  }
  std::string ballast() const { return data() + "/ballast"; }
  void FillUp() {
    std::ofstream file(ballast(), std::ios::binary);
    const std::string block(4096, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  // What neuraldbgctl prints, on both streams.
  std::string Ask(const std::vector<std::string>& words) {
    const std::string errors = shm() + "/../asked";
    std::filesystem::remove(errors);
    std::vector<std::string> command = {NEURALDBGCTL_PATH};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--address", "unix:" + socket(), "--data-dir", data()});
    ChildProcess ctl(command, errors, {"HOME=" + data(), "PATH=/usr/bin:/bin", "NEURALDBG_SHM_DIR=" + shm()});
    std::string said = ctl.ReadAll();
    ctl.Wait();
    return said + ReadFile(errors);
  }
  // Since when, why, and what to do; and the question is answered all the same.
  void ExpectSaidByEveryVerb() {
    const std::string path = data() + "/neuraldbg.db is full";
    const std::vector<std::pair<std::vector<std::string>, std::string>> questions = {
        {{"status"}, "1 running"},
        {{"status", "-o", "json"}, "NOT_STORING"},
        {{"runs"}, "RUNNING"},
        {{"runs", "-o", "json"}, "\"full\""},
        {{"doctor"}, "answers at"},
        {{"doctor", "-o", "json"}, "remedy"},
        {{"diagnose", "full"}, "Verdict"},
        {{"diagnose"}, "Verdict"},
        {{"diagnose", "full", "-o", "json"}, "stepsSeen"},
        {{"diagnose", "unknown"}, "There is no run"}};
    for (const auto& [words, answer] : questions) {
      const std::string said = Unwrapped(Ask(words));
      for (const std::string& part :
           {std::string("Nothing has been stored since 2"), path, std::string("Make room there"), answer}) {
        EXPECT_NE(said.find(part), std::string::npos) << words.front() << " lacks '" << part << "': " << said;
      }
    }
  }
  static std::string Unwrapped(const std::string& text) {
    std::string line;
    for (const char c : text) {
      const bool blank = c == ' ' || c == '\n';
      if (!blank || (!line.empty() && line.back() != ' ')) line.push_back(blank ? ' ' : c);
    }
    return line;
  }
  std::size_t TimesSaid(const std::string& text) const {
    const std::string log = errors();
    std::size_t times = 0;
    for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++times;
    return times;
  }

 private:
  bool mounted_ = false;
};

TEST_F(FullDiskTest, IsSaidOnceAndNothingIsLostOnceThereIsRoom) {
  const auto daemon = StartDaemon();
  AwaitServing();
  const auto producer = StartProducer({"full", std::to_string(kSteps), "2000", "1000000", "close"});
  for (int line = 0; line < 50; ++line) producer->ReadLine();
  FillUp();
  Await("the refusal", [&] { return TimesSaid("the store refuses data") > 0; });
  EXPECT_EQ(producer->Wait(), 0) << "it fails if a record was dropped";
  ExpectSaidByEveryVerb();
  {  // Several retries later it has still been said once, and the run has not ended.
    const auto reader = OpenStore();
    ASSERT_NE(reader, nullptr);
    EXPECT_EQ(reader->FindRun("full")->state, RunState::kRunning);
  }
  std::filesystem::remove(ballast());
  AwaitRunState("full", RunState::kFinished);
  EXPECT_EQ(TimesSaid("the store refuses data"), 1u) << errors();
  EXPECT_EQ(TimesSaid("the store takes data again"), 1u) << errors();
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"status"}, {"doctor"}, {"diagnose"}}) {
    EXPECT_EQ(Ask(words).find("Nothing has been stored"), std::string::npos) << "it is over";
  }

  const auto reader = OpenStore();
  const StoredRank rank = reader->ListRanks(reader->FindRun("full")->id)->at(0);
  EXPECT_EQ(rank.records_dropped, 0u);
  EXPECT_EQ(rank.records_received, kSteps * 9);
  const auto frames = reader->ReadFrames(rank.key, 0, UINT64_MAX);
  ASSERT_TRUE(frames.ok()) << frames.status();
  ASSERT_EQ(frames->size(), kSteps);
  EXPECT_TRUE(std::all_of(frames->begin(), frames->end(), [](const StepFrame& frame) { return frame.complete; }));
  EXPECT_TRUE(daemon->Running());
}

}  // namespace
}  // namespace neuraldbg
