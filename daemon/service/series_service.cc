#include "daemon/service/answer.h"
#include "neuraldbg/v1/series_service.grpc.pb.h"

namespace neuraldbg {
namespace {

class SeriesService final : public v1::SeriesService::CallbackService {
 public:
  explicit SeriesService(ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* QuerySeries(grpc::CallbackServerContext* call, const v1::QuerySeriesRequest* request,
                                        v1::QuerySeriesResponse* response) override {
    return Answer(context_, call, request, response, neuraldbg::QuerySeries);
  }
  grpc::ServerUnaryReactor* Heatmap(grpc::CallbackServerContext* call, const v1::HeatmapRequest* request,
                                    v1::HeatmapResponse* response) override {
    return Answer(context_, call, request, response, neuraldbg::Heatmap);
  }

 private:
  ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSeriesService(ServiceContext& context) {
  return std::make_unique<SeriesService>(context);
}

}  // namespace neuraldbg
