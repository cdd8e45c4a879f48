// Goal: the server as clients meet it. Method: a real GrpcServer on a unix socket and on loopback TCP over a real
// store, a real EventFeed, and gRPC clients.
#include "daemon/service/server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "daemon/model/event_feed.h"
#include "neuraldbg/v1/diagnosis_service.grpc.pb.h"
#include "neuraldbg/v1/event_service.grpc.pb.h"
#include "neuraldbg/v1/run_service.grpc.pb.h"
#include "tests/daemon/service/filled_store.h"

namespace neuraldbg {
namespace {

using std::chrono::milliseconds;

// Long enough for a machine under load; a test that reaches it has failed.
constexpr std::chrono::seconds kWatchdog{60};

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(); }

  void Start() {
    ServerOptions options;
    options.listen = {"unix:" + socket_path_, "127.0.0.1:0"};
    options.open_reader = [this] { return Store::OpenReadOnly(filled_.directory()); };
    options.feed = &feed_;
    options.daemon_uid = daemon_uid_;
    options.stall_max = stall_max_;
    absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials());
  }

  static void SetWatchdog(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + kWatchdog);
  }

  grpc::Status ListRuns(const std::shared_ptr<grpc::Channel>& channel, v1::ListRunsResponse& response,
                        const char* uid = nullptr) {
    grpc::ClientContext context;
    SetWatchdog(context);
    if (uid != nullptr) {
      context.AddMetadata("x-neuraldbg-in-process", server_->in_process_key());
      context.AddMetadata("x-neuraldbg-uid", uid);
    }
    return v1::RunService::NewStub(channel)->ListRuns(&context, {}, &response);
  }

  FilledStore filled_;
  EventFeed feed_;
  std::uint32_t daemon_uid_ = geteuid();
  milliseconds stall_max_{60'000};
  std::string socket_path_ = filled_.directory() + "/run/neuraldbgd.sock";
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ServerTest, Socket_IsForItsOwnerOnlyAndGoesAwayWithTheServer) {
  struct stat status{};
  ASSERT_EQ(stat(socket_path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((filled_.directory() + "/run").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  server_->Shutdown(milliseconds(0));
  EXPECT_NE(stat(socket_path_.c_str(), &status), 0);
}

TEST_F(ServerTest, SecondServer_IsRefusedOnTheSameSocketAndPort) {
  for (const std::string& address : server_->addresses()) {
    ServerOptions options;
    options.listen = {address};
    options.open_reader = [this] { return Store::OpenReadOnly(filled_.directory()); };
    const auto second = GrpcServer::Start(std::move(options));
    ASSERT_FALSE(second.ok()) << address;
    const std::string place = address.substr(address.rfind(address.starts_with("unix:") ? '/' : ':') + 1);
    EXPECT_THAT(std::string(second.status().message()), ::testing::HasSubstr(place));
  }
  v1::ListRunsResponse response;
  EXPECT_TRUE(ListRuns(channel_, response).ok()) << "the first server goes on";
}

TEST_F(ServerTest, StaleSocket_IsTakenOver) {
  server_.reset();
  std::filesystem::create_directories(filled_.directory() + "/run");
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path_.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(fd);  // as a killed daemon leaves it
  Start();
  v1::ListRunsResponse response;
  EXPECT_TRUE(ListRuns(channel_, response).ok());
}

TEST_F(ServerTest, TcpFromOwnUser_IsServed) {
  const auto tcp = grpc::CreateChannel(server_->addresses()[1], grpc::InsecureChannelCredentials());
  v1::ListRunsResponse response;
  const grpc::Status status = ListRuns(tcp, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.runs_size(), 3);
}

TEST_F(ServerTest, InProcessChannel_ServesTheNamedUserOnly) {
  v1::ListRunsResponse response;
  EXPECT_EQ(ListRuns(server_->InProcessChannel(), response).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const grpc::Status status = ListRuns(server_->InProcessChannel(), response, "2000");
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.runs_size(), 1);
  EXPECT_EQ(response.runs(0).run(), "other");
}

TEST_F(ServerTest, UnknownRun_IsNotFound) {
  grpc::ClientContext context;
  SetWatchdog(context);
  v1::GetRunRequest request;
  request.set_run("nobody");
  v1::GetRunResponse response;
  const grpc::Status status = v1::RunService::NewStub(channel_)->GetRun(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("nobody"));
}

TEST_F(ServerTest, WatchEvents_SendsThePastThenLiveOnesAndEndsWithTheRun) {
  grpc::ClientContext context;
  SetWatchdog(context);
  filled_.Advance(1, 1, 2);
  const auto stub = v1::EventService::NewStub(channel_);
  v1::WatchEventsRequest request;
  request.set_run("gpt#2");
  request.set_after_id(1);
  const auto stream = stub->WatchEvents(&context, request);
  v1::WatchEventsResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.event().id(), 2u);
  filled_.Advance(2, 3, 1);
  feed_.Publish(filled_.running_id(), {}, false);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.event().id(), 3u);
  filled_.Advance(3, 4, 600);  // more than a page
  filled_.EndRun();
  feed_.Publish(filled_.running_id(), {}, false);
  std::uint64_t expected = 4;
  while (stream->Read(&response)) EXPECT_EQ(response.event().id(), expected++);
  EXPECT_EQ(expected, 604u);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServerTest, WatchEvents_SendsManyEventsOfThePast) {
  filled_.Advance(1, 1, 1000);  // the very first write belongs to a full page
  filled_.EndRun();
  grpc::ClientContext context;
  SetWatchdog(context);
  v1::WatchEventsRequest request;
  request.set_run("gpt#2");
  const auto stub = v1::EventService::NewStub(channel_);
  const auto stream = stub->WatchEvents(&context, request);
  v1::WatchEventsResponse response;
  std::uint64_t expected = 1;
  while (stream->Read(&response)) EXPECT_EQ(response.event().id(), expected++);
  EXPECT_EQ(expected, 1001u);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServerTest, Diagnose_WaitsUntilTheStepIsConsumed) {
  const auto stub = v1::DiagnosisService::NewStub(channel_);
  std::thread trainer([&] {
    std::this_thread::sleep_for(milliseconds(200));
    filled_.Advance(1);
    feed_.Publish(filled_.running_id(), {}, true);
    std::this_thread::sleep_for(milliseconds(200));
    filled_.Advance(2, 0, 0, Verdict::UNSURE);
    feed_.Publish(filled_.running_id(), {}, true);
  });
  grpc::ClientContext context;
  SetWatchdog(context);
  v1::DiagnoseRequest request;
  request.set_run("gpt#2");
  request.set_wait_step(2);
  request.mutable_wait_timeout()->set_seconds(50);
  v1::DiagnoseResponse response;
  const grpc::Status status = stub->Diagnose(&context, request, &response);
  trainer.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(response.step_consumed());
  EXPECT_EQ(response.diagnosis().verdict(), v1::Diagnosis::UNSURE);
  EXPECT_EQ(response.diagnosis().steps_seen(), 3u);
}

TEST_F(ServerTest, Diagnose_AnswersWithWhatItHasWhenPatienceEnds) {
  grpc::ClientContext context;
  SetWatchdog(context);
  v1::DiagnoseRequest request;
  request.set_wait_step(1000);
  request.mutable_wait_timeout()->set_nanos(200'000'000);
  v1::DiagnoseResponse response;
  ASSERT_TRUE(v1::DiagnosisService::NewStub(channel_)->Diagnose(&context, request, &response).ok());
  EXPECT_FALSE(response.step_consumed());
  EXPECT_EQ(response.diagnosis().verdict(), v1::Diagnosis::HEALTHY);
}

TEST_F(ServerTest, WatchDiagnoses_SendsTheCurrentOneAndEveryChange) {
  grpc::ClientContext context;
  SetWatchdog(context);
  v1::WatchDiagnosesRequest request;
  request.set_run("gpt#2");
  const auto stub = v1::DiagnosisService::NewStub(channel_);
  const auto stream = stub->WatchDiagnoses(&context, request);
  v1::WatchDiagnosesResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.diagnosis().verdict(), v1::Diagnosis::HEALTHY);
  filled_.Advance(1, 0, 0, Verdict::FAULT);
  feed_.Publish(filled_.running_id(), {}, true);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.diagnosis().verdict(), v1::Diagnosis::FAULT);
  filled_.EndRun();
  feed_.Publish(filled_.running_id(), {}, false);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServerTest, Shutdown_EndsStreamsAndWaits) {
  grpc::ClientContext context;
  SetWatchdog(context);
  v1::WatchEventsRequest request;
  request.set_run("gpt#2");
  const auto stub = v1::EventService::NewStub(channel_);
  const auto stream = stub->WatchEvents(&context, request);
  while (server_->active_calls() == 0) std::this_thread::sleep_for(milliseconds(5));
  std::thread ending([&] { server_->Shutdown(milliseconds(5000)); });
  v1::WatchEventsResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  ending.join();
}

TEST_F(ServerTest, CancelledStream_IsForgotten) {
  v1::WatchEventsRequest request;
  request.set_run("gpt#2");
  const auto stub = v1::EventService::NewStub(channel_);
  grpc::ClientContext context;
  const auto stream = stub->WatchEvents(&context, request);
  while (server_->active_calls() == 0) std::this_thread::sleep_for(milliseconds(5));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (server_->active_calls() != 0) std::this_thread::sleep_for(milliseconds(5));
}

class ImpatientServerTest : public ServerTest {
 protected:
  ImpatientServerTest() { stall_max_ = milliseconds(1000); }
};

// Runs into the cut while pages are still being fetched and written, which once ended in a deadlock of the thread that
// serves all streams (the stream's lock was held while LiveCalls was woken).
TEST_F(ImpatientServerTest, ReaderThatTakesNothing_IsCutOff) {
  // About 8 MiB. Left alone, gRPC widens the window of a fast connection until all of it may fit, and nothing stalls.
  constexpr std::uint64_t kEvents = 60'000;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own, with these arguments
  const auto channel =
      grpc::CreateCustomChannel(server_->addresses()[0], grpc::InsecureChannelCredentials(), arguments);
  filled_.Advance(1, 1, kEvents);
  v1::WatchEventsRequest request;
  request.set_run("gpt#2");
  const auto stub = v1::EventService::NewStub(channel);
  grpc::ClientContext context;
  SetWatchdog(context);
  const auto stream = stub->WatchEvents(&context, request);
  v1::WatchEventsResponse response;
  ASSERT_TRUE(stream->Read(&response)) << stream->Finish().error_message();
  while (server_->active_calls() != 0) std::this_thread::sleep_for(milliseconds(20));
  std::uint64_t read = 1;
  while (stream->Read(&response)) ++read;
  EXPECT_LT(read, kEvents);
  const grpc::StatusCode code = stream->Finish().error_code();
  EXPECT_THAT(code, ::testing::AnyOf(grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::CANCELLED,
                                     grpc::StatusCode::UNAVAILABLE));
}

TEST(ServerAddressTest, BadAddresses_AreNamed) {
  for (const char* address : {"unix:relative", "nonsense", "127.0.0.1:99999", "0.0.0.0:0"}) {
    ServerOptions options;
    options.listen = {address};
    const auto server = GrpcServer::Start(std::move(options));
    ASSERT_FALSE(server.ok()) << address;
    EXPECT_THAT(std::string(server.status().message()), ::testing::HasSubstr(address));
  }
}

}  // namespace
}  // namespace neuraldbg
