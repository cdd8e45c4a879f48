#include "daemon/service/convert.h"
#include "daemon/service/run_follower.h"
#include "daemon/service/run_topology.h"
#include "daemon/service/store_stream.h"
#include "neuraldbg/v1/event_service.grpc.pb.h"

namespace neuraldbg {
namespace {

using EventStream = StoreStream<v1::WatchEventsResponse>;

// Events read from the store at once; a stream holds no more.
constexpr std::uint32_t kEventsPerPage = 256;

class EventSource {
 public:
  EventSource(ServiceContext& context, StoredRun run, std::uint64_t after_id)
      : context_(&context), follower_(std::move(run), context.feed), after_id_(after_id) {}

  absl::Status operator()(std::deque<v1::WatchEventsResponse>& page, bool& end) {
    if (!follower_.News() && !more_) return absl::OkStatus();
    absl::StatusOr<ReaderPool::Lease> reader = context_->readers.Borrow();
    if (!reader.ok()) return reader.status();
    const absl::StatusOr<bool> ended = follower_.Ended(**reader);
    if (!ended.ok()) return ended.status();
    const absl::StatusOr<std::vector<Transition>> found =
        (**reader).ListTransitions(follower_.run().id, after_id_, kEventsPerPage);
    if (!found.ok()) return found.status();
    end = *ended;
    more_ = !found->empty();  // at the end of the page look again, whatever the feed says
    if (found->empty()) return absl::OkStatus();
    absl::StatusOr<RunTopology> topology = RunTopology::Load(**reader, follower_.run());
    if (!topology.ok()) return topology.status();
    for (const Transition& transition : *found) {
      *page.emplace_back().mutable_event() = ToProto(transition, follower_.run(), *topology);
    }
    after_id_ = found->back().id;
    return absl::OkStatus();
  }

 private:
  ServiceContext* context_;
  RunFollower follower_;
  std::uint64_t after_id_;
  bool more_ = false;
};

absl::StatusOr<EventStream::Source> OpenSource(ServiceContext& context, const grpc::CallbackServerContext& call,
                                               const v1::WatchEventsRequest& request) {
  const absl::StatusOr<Caller> caller = IdentifyCaller(context, call);
  if (!caller.ok()) return caller.status();
  absl::StatusOr<ReaderPool::Lease> reader = context.readers.Borrow();
  if (!reader.ok()) return reader.status();
  absl::StatusOr<StoredRun> run = ResolveRun(**reader, *caller, request.run());
  if (!run.ok()) return run.status();
  return EventStream::Source(EventSource(context, *std::move(run), request.after_id()));
}

class EventService final : public v1::EventService::CallbackService {
 public:
  explicit EventService(ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* call, const v1::ListEventsRequest* request,
                                       v1::ListEventsResponse* response) override {
    return Answer(context_, call, request, response, neuraldbg::ListEvents);
  }
  grpc::ServerWriteReactor<v1::WatchEventsResponse>* WatchEvents(grpc::CallbackServerContext* call,
                                                                 const v1::WatchEventsRequest* request) override {
    return EventStream::Start(context_, call, OpenSource(context_, *call, *request));
  }

 private:
  ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeEventService(ServiceContext& context) {
  return std::make_unique<EventService>(context);
}

}  // namespace neuraldbg
