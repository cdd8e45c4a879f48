#include "daemon/cli/source.h"

#include <google/protobuf/util/time_util.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/service/grpc_log.h"
#include "daemon/service/peer_identity.h"
#include "daemon/service/query.h"
#include "neuraldbg/v1/diagnosis_service.grpc.pb.h"
#include "neuraldbg/v1/event_service.grpc.pb.h"
#include "neuraldbg/v1/run_service.grpc.pb.h"
#include "neuraldbg/v1/series_service.grpc.pb.h"

namespace neuraldbg {
namespace {

// An answer is a few milliseconds of SQLite; a daemon that needs longer than this is not well.
constexpr std::chrono::seconds kAnswerMax{30};

absl::Status ToAbslStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

std::chrono::milliseconds ExtraTime(const google::protobuf::Message&) { return std::chrono::milliseconds(0); }
std::chrono::milliseconds ExtraTime(const v1::DiagnoseRequest& request) {
  return std::chrono::milliseconds(google::protobuf::util::TimeUtil::DurationToMilliseconds(request.wait_timeout()));
}

class DaemonSource final : public Source {
 public:
  DaemonSource(const std::shared_ptr<grpc::Channel>& channel, std::string token)
      : token_(std::move(token)),
        RunService_(v1::RunService::NewStub(channel)),
        SeriesService_(v1::SeriesService::NewStub(channel)),
        EventService_(v1::EventService::NewStub(channel)),
        DiagnosisService_(v1::DiagnosisService::NewStub(channel)) {}

  bool live() const override { return true; }

#define X(service, method)                                                                      \
  absl::StatusOr<v1::method##Response> method(const v1::method##Request& request) override {    \
    grpc::ClientContext context;                                                                \
    Prepare(context);                                                                           \
    context.set_deadline(std::chrono::system_clock::now() + kAnswerMax + ExtraTime(request));   \
    v1::method##Response response;                                                              \
    const absl::Status status = ToAbslStatus(service##_->method(&context, request, &response)); \
    if (!status.ok()) return status;                                                            \
    return response;                                                                            \
  }
  NEURALDBG_UNARY_CALLS(X)
#undef X

  absl::Status WatchEvents(const v1::WatchEventsRequest& request,
                           const std::function<bool(const v1::Event&)>& visit) override {
    grpc::ClientContext context;
    Prepare(context);
    const auto stream = EventService_->WatchEvents(&context, request);
    v1::WatchEventsResponse response;
    while (stream->Read(&response)) {
      if (visit(response.event())) continue;
      context.TryCancel();
      stream->Finish();
      return absl::OkStatus();
    }
    return ToAbslStatus(stream->Finish());
  }

 private:
  void Prepare(grpc::ClientContext& context) const {
    if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
  }

  const std::string token_;
  // Named after the service, so that the list of calls can find them.
  const std::unique_ptr<v1::RunService::Stub> RunService_;
  const std::unique_ptr<v1::SeriesService::Stub> SeriesService_;
  const std::unique_ptr<v1::EventService::Stub> EventService_;
  const std::unique_ptr<v1::DiagnosisService::Stub> DiagnosisService_;
};

class StoredSource final : public Source {
 public:
  explicit StoredSource(std::unique_ptr<StoreReader> reader) : reader_(std::move(reader)) {}

  bool live() const override { return false; }

#define X(service, method)                                                                   \
  absl::StatusOr<v1::method##Response> method(const v1::method##Request& request) override { \
    return neuraldbg::method(*reader_, caller_, request);                                    \
  }
  NEURALDBG_UNARY_CALLS(X)
#undef X

  absl::Status WatchEvents(const v1::WatchEventsRequest&, const std::function<bool(const v1::Event&)>&) override {
    return absl::UnavailableError("Without a daemon there is nothing to follow.");
  }

 private:
  const std::unique_ptr<StoreReader> reader_;
  // Whoever may read the file may read all of it: the file system has already decided.
  const Caller caller_{geteuid(), true};
};

bool Connects(grpc::Channel& channel, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::system_clock::now() + patience;
  for (grpc_connectivity_state state = channel.GetState(true); state != GRPC_CHANNEL_READY;
       state = channel.GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || !channel.WaitForStateChange(state, deadline)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> ConnectToDaemon(const DaemonAddress& address,
                                                        std::chrono::milliseconds patience) {
  SilenceGrpcLog();
  std::string token;
  if (!address.token_file.empty()) {
    absl::StatusOr<std::string> read = ReadTokenFile(address.token_file);
    if (!read.ok()) return absl::InvalidArgumentError(read.status().message());
    token = *std::move(read);
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // a daemon is not on the internet
  arguments.SetMaxReceiveMessageSize(-1);           // long series at full detail
  const auto channel = grpc::CreateCustomChannel(address.target, grpc::InsecureChannelCredentials(), arguments);
  if (!Connects(*channel, patience)) {
    return absl::UnavailableError(absl::StrCat("no daemon answers at ", address.target));
  }
  return std::make_unique<DaemonSource>(channel, std::move(token));
}

absl::StatusOr<std::unique_ptr<Source>> OpenStoredRuns(const std::string& data_directory) {
  absl::StatusOr<std::unique_ptr<StoreReader>> reader = Store::OpenReadOnly(data_directory);
  if (!reader.ok()) return reader.status();
  return std::make_unique<StoredSource>(*std::move(reader));
}

}  // namespace neuraldbg
