#include <google/protobuf/util/message_differencer.h>
#include <google/protobuf/util/time_util.h>

#include "absl/strings/str_cat.h"
#include "daemon/service/run_follower.h"
#include "daemon/service/store_stream.h"
#include "neuraldbg/v1/diagnosis_service.grpc.pb.h"

namespace neuraldbg {
namespace {

using DiagnosisStream = StoreStream<v1::WatchDiagnosesResponse>;

// docs/api.md: what DiagnoseRequest.wait_timeout means when it is absent.
constexpr std::chrono::seconds kWaitDefault{10};

// Diagnose with wait_step. Keeps itself alive until OnDone; see StoreStream for the threads.
class WaitingDiagnose final : public grpc::ServerUnaryReactor, public LiveCall {
 public:
  static grpc::ServerUnaryReactor* Start(ServiceContext& context, const grpc::CallbackServerContext& call,
                                         const v1::DiagnoseRequest& request, v1::DiagnoseResponse* response) {
    auto waiting = std::shared_ptr<WaitingDiagnose>(new WaitingDiagnose(context, request, response));
    waiting->self_ = waiting;
    absl::StatusOr<Caller> caller = IdentifyCaller(context, call);
    if (!caller.ok()) {
      waiting->FinishOnce(caller.status());
    } else {
      waiting->caller_ = *caller;
      if (!context.live.Add(waiting)) waiting->FinishOnce(absl::ResourceExhaustedError("Too many calls are waiting."));
    }
    return waiting.get();
  }

  void Look(bool closing) override {
    if (done()) return;
    bool more_to_come = true;
    absl::StatusOr<v1::DiagnoseResponse> answer = Ask(more_to_come);
    const bool patient = !closing && std::chrono::steady_clock::now() < give_up_;
    // The run may be so new that its segment was not adopted yet.
    if (patient && (absl::IsNotFound(answer.status()) || (answer.ok() && !answer->step_consumed() && more_to_come)))
      return;
    FinishOnce(WithWarnings(context_, answer.status()), answer.ok() ? &*answer : nullptr);
  }

  bool done() const override { return finished_; }
  void OnCancel() override { FinishOnce(absl::CancelledError("The caller gave up.")); }
  void OnDone() override { std::exchange(self_, nullptr).reset(); }

 private:
  WaitingDiagnose(ServiceContext& context, const v1::DiagnoseRequest& request, v1::DiagnoseResponse* response)
      : context_(context), request_(request), response_(response), give_up_(std::chrono::steady_clock::now()) {
    give_up_ += request.has_wait_timeout()
                    ? std::chrono::milliseconds(
                          google::protobuf::util::TimeUtil::DurationToMilliseconds(request.wait_timeout()))
                    : std::chrono::milliseconds(kWaitDefault);
  }

  absl::StatusOr<v1::DiagnoseResponse> Ask(bool& more_to_come) {
    absl::StatusOr<ReaderPool::Lease> reader = context_.readers.Borrow();
    if (!reader.ok()) return reader.status();
    return DiagnoseSoFar(**reader, caller_, request_, context_.CurrentWarnings(), more_to_come);
  }

  // `answer` is moved into gRPC's response, which lives until Finish.
  void FinishOnce(const absl::Status& status, v1::DiagnoseResponse* answer = nullptr) {
    {
      const std::lock_guard lock(mutex_);
      if (finished_.exchange(true)) return;
      if (answer != nullptr) response_->Swap(answer);
    }
    Finish(ToGrpcStatus(status));
  }

  ServiceContext& context_;
  const v1::DiagnoseRequest request_;
  v1::DiagnoseResponse* const response_;
  std::chrono::steady_clock::time_point give_up_;
  Caller caller_;
  std::shared_ptr<WaitingDiagnose> self_;
  std::mutex mutex_;
  std::atomic<bool> finished_ = false;
};

// Sends a diagnosis whenever it differs from the one before.
class DiagnosisSource {
 public:
  DiagnosisSource(ServiceContext& context, StoredRun run)
      : context_(&context), follower_(std::move(run), context.feed) {}

  absl::Status operator()(std::deque<v1::WatchDiagnosesResponse>& page, bool& end) {
    if (!follower_.News() && !ended_) return absl::OkStatus();
    absl::StatusOr<ReaderPool::Lease> reader = context_->readers.Borrow();
    if (!reader.ok()) return reader.status();
    const absl::StatusOr<bool> ended = follower_.Ended(**reader);
    if (!ended.ok()) return ended.status();
    const absl::StatusOr<v1::Diagnosis> diagnosis = DiagnosisOf(**reader, follower_.run());
    if (!diagnosis.ok()) return diagnosis.status();
    end = ended_ = *ended;
    if (sent_ && google::protobuf::util::MessageDifferencer::Equals(*diagnosis, *sent_)) return absl::OkStatus();
    *page.emplace_back().mutable_diagnosis() = *diagnosis;
    sent_ = *diagnosis;
    return absl::OkStatus();
  }

 private:
  ServiceContext* context_;
  RunFollower follower_;
  std::optional<v1::Diagnosis> sent_;
  bool ended_ = false;
};

absl::StatusOr<DiagnosisStream::Source> OpenSource(ServiceContext& context, const grpc::CallbackServerContext& call,
                                                   const v1::WatchDiagnosesRequest& request) {
  const absl::StatusOr<Caller> caller = IdentifyCaller(context, call);
  if (!caller.ok()) return caller.status();
  absl::StatusOr<ReaderPool::Lease> reader = context.readers.Borrow();
  if (!reader.ok()) return reader.status();
  absl::StatusOr<StoredRun> run = ResolveRun(**reader, *caller, request.run());
  if (!run.ok()) return run.status();
  return DiagnosisStream::Source(DiagnosisSource(context, *std::move(run)));
}

class DiagnosisService final : public v1::DiagnosisService::CallbackService {
 public:
  explicit DiagnosisService(ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Diagnose(grpc::CallbackServerContext* call, const v1::DiagnoseRequest* request,
                                     v1::DiagnoseResponse* response) override {
    if (request->has_wait_step()) return WaitingDiagnose::Start(context_, *call, *request, response);
    return Answer(context_, call, request, response, neuraldbg::Diagnose);
  }
  grpc::ServerWriteReactor<v1::WatchDiagnosesResponse>* WatchDiagnoses(
      grpc::CallbackServerContext* call, const v1::WatchDiagnosesRequest* request) override {
    return DiagnosisStream::Start(context_, call, OpenSource(context_, *call, *request));
  }
  grpc::ServerUnaryReactor* GetCausalGraph(grpc::CallbackServerContext* call, const v1::GetCausalGraphRequest* request,
                                           v1::GetCausalGraphResponse* response) override {
    return Answer(context_, call, request, response, neuraldbg::GetCausalGraph);
  }

 private:
  ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDiagnosisService(ServiceContext& context) {
  return std::make_unique<DiagnosisService>(context);
}

}  // namespace neuraldbg
