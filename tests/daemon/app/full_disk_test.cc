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
  {  // Several retries later it has still been said once, and the run has not ended.
    const auto reader = OpenStore();
    ASSERT_NE(reader, nullptr);
    EXPECT_EQ(reader->FindRun("full")->state, RunState::kRunning);
  }
  std::filesystem::remove(ballast());
  AwaitRunState("full", RunState::kFinished);
  EXPECT_EQ(TimesSaid("the store refuses data"), 1u) << errors();
  EXPECT_EQ(TimesSaid("the store takes data again"), 1u) << errors();

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
