// The daemon process from start to end: what it says when it cannot start, what it leaves when it ends.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "daemon/http/http_server.h"
#include "tests/daemon/app/daemon_fixture.h"
#include "tests/daemon/http/http_client.h"

namespace neuraldbg {
namespace {

class LifecycleTest : public DaemonFixture {
 protected:
  static bool IsOneSentence(const std::string& said) {
    return said.starts_with("neuraldbgd: ") && said.find('\n') == said.size() - 1 && said.size() > 20;
  }
};

// Binds a loopback port for as long as it lives.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(socket_, 1), 0);
    socklen_t length = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { ::close(socket_); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int socket_;
  int port_ = 0;
};

TEST_F(LifecycleTest, WrongFlag_IsUsage) {
  std::string said;
  EXPECT_EQ(RunDaemon({"--frobnicate"}, said), 2);
  EXPECT_TRUE(IsOneSentence(said)) << said;
  EXPECT_EQ(RunDaemon({"--role", "fleet"}, said), 2);
  EXPECT_TRUE(IsOneSentence(said)) << said;
}

TEST_F(LifecycleTest, CheckConfig_PrintsAndStartsNothing) {
  std::string said;
  EXPECT_EQ(RunDaemon({"--check-config", "--data-dir", data()}, said), 0);
  EXPECT_TRUE(said.empty()) << said;
  EXPECT_FALSE(std::filesystem::exists(data()));
}

TEST_F(LifecycleTest, TakenPort_IsSaid) {
  const TakenPort taken;
  for (const char* flag : {"--grpc", "--http"}) {
    std::string said;
    std::vector<std::string> arguments = {"--shm-dir",        shm(), "--data-dir",   data(), "--grpc",
                                          "unix:" + socket(), flag,  taken.address()};
    if (flag == std::string("--grpc")) arguments.insert(arguments.end(), {"--http", "off"});
    EXPECT_EQ(RunDaemon(arguments, said), 1);
    EXPECT_TRUE(IsOneSentence(said)) << said;
    EXPECT_TRUE(said.find(taken.address()) != std::string::npos) << said;
  }
}

TEST_F(LifecycleTest, ALiveRun_IsInTheMetrics) {
  const auto daemon = StartDaemon();
  AwaitServing();
  const auto producer = StartProducer({"watched", "1000000", "1000"});
  Await("records of the run", [this] {
    const std::string metrics = HttpGet(http(), "/metrics");
    return metrics.find("\nneuraldbg_segments_live 1\n") != std::string::npos &&
           metrics.find("\nneuraldbg_run_records_received_total{run=\"watched\"} ") != std::string::npos &&
           metrics.find("\nneuraldbg_run_verdict{run=\"watched\",verdict=\"INCOMPLETE_DATA\"}") != std::string::npos &&
           metrics.find("\nneuraldbg_ring_slots_drained_total 0\n") == std::string::npos;
  });
  producer->Signal(SIGKILL);
  AwaitRunState("watched", RunState::kDied);
  const std::string after = HttpGet(http(), "/metrics");
  EXPECT_NE(after.find("\nneuraldbg_runs{state=\"died\"} 1\n"), std::string::npos) << after;
  EXPECT_EQ(after.find("run=\"watched\""), std::string::npos) << after;
}

TEST_F(LifecycleTest, HttpOff_OpensNoPort) {
  const auto daemon = StartDaemon({"--http", "off"});
  AwaitServing();
  EXPECT_NE(ReadFile(data() + "/endpoint.json").find("\"http\": null"), std::string::npos);
}

TEST_F(LifecycleTest, DaemonsThatJobsStart_TakeOnePortAfterTheOther) {
  HttpServerOptions default_port;
  default_port.address = "127.0.0.1:7434";  // taken now, by this test or by whoever had it
  const auto server = HttpServer::Listen(default_port);
  const auto daemon = StartDaemon({"--exit-when-idle", "600"}, false);
  AwaitServing();
  const int port = std::stoi(http().substr(http().rfind(':') + 1));
  EXPECT_GT(port, 7434);
  EXPECT_LT(port, 7434 + 100);
  EXPECT_TRUE(HttpGet(http(), "/healthz").ends_with("ok\n"));
}

TEST_F(LifecycleTest, UnwritableDataDirectory_IsSaid) {
  const std::string file = shm() + "/file";
  std::ofstream(file) << "in the way";
  std::string said;
  EXPECT_EQ(RunDaemon({"--shm-dir", shm(), "--data-dir", file + "/data", "--grpc", "unix:" + socket()}, said), 1);
  EXPECT_TRUE(IsOneSentence(said)) << said;
  EXPECT_NE(said.find(file), std::string::npos);
}

TEST_F(LifecycleTest, MissingShmDirectory_IsSaid) {
  std::string said;
  EXPECT_EQ(RunDaemon({"--shm-dir", shm() + "/none", "--data-dir", data(), "--grpc", "unix:" + socket()}, said), 1);
  EXPECT_TRUE(IsOneSentence(said)) << said;
}

TEST_F(LifecycleTest, ShmDirectoryThatIsAFile_IsSaid) {
  const std::string file = shm() + "/file";
  std::ofstream(file) << "in the way";
  std::string said;
  EXPECT_EQ(RunDaemon({"--shm-dir", file, "--data-dir", data(), "--grpc", "unix:" + socket()}, said), 1);
  EXPECT_TRUE(IsOneSentence(said)) << said;
  EXPECT_NE(said.find(file + " is no directory"), std::string::npos) << said;
}

TEST_F(LifecycleTest, SecondDaemon_OnTheSameDataDirectoryIsRefused) {
  const auto first = StartDaemon();
  AwaitServing();
  std::string said;
  EXPECT_EQ(RunDaemon({"--shm-dir", shm(), "--data-dir", data(), "--grpc", "unix:" + socket() + "2"}, said), 1);
  EXPECT_TRUE(IsOneSentence(said)) << said;
  EXPECT_TRUE(first->Running());
  EXPECT_TRUE(std::filesystem::exists(data() + "/endpoint.json"));
}

TEST_F(LifecycleTest, Endpoint_IsPrivateAndGoneAtTheEnd) {
  const auto daemon = StartDaemon();
  AwaitServing();
  struct stat status{};
  ASSERT_EQ(::stat((data() + "/endpoint.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_NE(ReadFile(data() + "/endpoint.json").find(socket()), std::string::npos);
  EXPECT_TRUE(HttpGet(http(), "/healthz").ends_with("\r\n\r\nok\n"));
  ASSERT_EQ(::stat(socket().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(data() + "/endpoint.json"));
  EXPECT_FALSE(std::filesystem::exists(socket()));
}

TEST_F(LifecycleTest, Sigterm_StoresWhatIsInTheRing) {
  const auto daemon = StartDaemon();
  AwaitServing();
  const auto producer = StartProducer({"ended", "1000000", "1000"});
  std::string last;
  for (int line = 0; line < 100; ++line) last = producer->ReadLine();
  producer->Signal(SIGSTOP);  // alive, and everything it pushed lies in the ring or the store
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->Wait(), 0);
  const auto reader = OpenStore();
  ASSERT_NE(reader, nullptr);
  const auto run = reader->FindRun("ended");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->state, RunState::kRunning);
  EXPECT_GE(run->last_step, std::stoull(last));
  producer->Signal(SIGCONT);
}

TEST_F(LifecycleTest, CleanEnd_AndDeath_AreToldApart) {
  const auto daemon = StartDaemon();
  AwaitServing();
  const auto finished = StartProducer({"finished", "30", "0", "1000", "close"});
  const auto died = StartProducer({"died", "30", "0", "1000", "die"});
  AwaitRunState("finished", RunState::kFinished);
  AwaitRunState("died", RunState::kDied);
  Await("the segments to be removed", [this] { return std::filesystem::is_empty(shm()); });
  const auto reader = OpenStore();
  const auto run = reader->FindRun("died");
  ASSERT_TRUE(run.ok());
  const auto ranks = reader->ListRanks(run->id);
  ASSERT_TRUE(ranks.ok());
  ASSERT_EQ(ranks->size(), 1u);
  EXPECT_EQ(ranks->at(0).state, RankState::kDied);
  EXPECT_EQ(ranks->at(0).records_dropped, 0u);
  EXPECT_EQ(ranks->at(0).records_received, 30u * 9);
  EXPECT_EQ(ranks->at(0).records_produced, 30u * 9);
  EXPECT_EQ(ranks->at(0).last_step, 29u);
  EXPECT_EQ(ranks->at(0).host, "testhost");
}

TEST_F(LifecycleTest, DaemonThatComesLate_FindsWhatADeadProducerLeft) {
  const auto producer = StartProducer({"early", "50", "0", "1000", "die"});
  EXPECT_EQ(producer->Wait(), 0);
  const auto daemon = StartDaemon();
  AwaitRunState("early", RunState::kDied);
  const auto reader = OpenStore();
  EXPECT_EQ(reader->FindRun("early")->steps_seen, 50u);
}

TEST_F(LifecycleTest, SameLaunchAgain_IsTheNextIncarnation) {
  const auto daemon = StartDaemon();
  AwaitServing();
  EXPECT_EQ(StartProducer({"again", "20", "0", "1000", "die"})->Wait(), 0);
  AwaitRunState("again", RunState::kDied);
  EXPECT_EQ(StartProducer({"again", "20", "0", "1000", "close"})->Wait(), 0);
  AwaitRunState("again", RunState::kFinished);
  const auto reader = OpenStore();
  const auto ranks = reader->ListRanks(reader->FindRun("again")->id);
  ASSERT_EQ(ranks->size(), 2u);
  EXPECT_EQ(ranks->at(0).key.incarnation + ranks->at(1).key.incarnation, 1u);
}

TEST_F(LifecycleTest, IdleDaemon_EndsAndLeavesReports) {
  const auto daemon = StartDaemon({"--exit-when-idle", "1"});
  AwaitServing();
  StartProducer({"reported", "60", "0", "40", "close"})->Wait();
  EXPECT_EQ(daemon->Wait(), 0);
  EXPECT_NE(ReadFile(data() + "/reports/reported.json").find("\"verdict\""), std::string::npos);
  EXPECT_FALSE(ReadFile(data() + "/reports/reported.txt").empty());
}

TEST_F(LifecycleTest, GarbageInTheDirectory_IsLoggedOnceAndHarmless) {
  std::ofstream(shm() + "/neuraldbg.0.0123456789abcdef.r0.1.0") << std::string(5000, 'x');
  const auto daemon = StartDaemon();
  AwaitServing();
  StartProducer({"beside", "20", "0", "1000", "close"})->Wait();
  AwaitRunState("beside", RunState::kFinished);
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->Wait(), 0);
  const std::string log = errors();
  const std::size_t first = log.find("is left alone");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("is left alone", first + 1), std::string::npos) << log;
}

}  // namespace
}  // namespace neuraldbg
