#include "daemon/service/answer.h"
#include "neuraldbg/v1/run_service.grpc.pb.h"

namespace neuraldbg {
namespace {

class RunService final : public v1::RunService::CallbackService {
 public:
  explicit RunService(ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* call, const v1::ListRunsRequest* request,
                                     v1::ListRunsResponse* response) override {
    return Answer(context_, call, request, response, neuraldbg::ListRuns);
  }
  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext* call, const v1::GetRunRequest* request,
                                   v1::GetRunResponse* response) override {
    return Answer(context_, call, request, response, neuraldbg::GetRun);
  }
  grpc::ServerUnaryReactor* ListRanks(grpc::CallbackServerContext* call, const v1::ListRanksRequest* request,
                                      v1::ListRanksResponse* response) override {
    return Answer(context_, call, request, response, neuraldbg::ListRanks);
  }
  grpc::ServerUnaryReactor* ListSites(grpc::CallbackServerContext* call, const v1::ListSitesRequest* request,
                                      v1::ListSitesResponse* response) override {
    return Answer(context_, call, request, response, neuraldbg::ListSites);
  }

 private:
  ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRunService(ServiceContext& context) { return std::make_unique<RunService>(context); }

}  // namespace neuraldbg
