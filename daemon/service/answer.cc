#include "daemon/service/answer.h"

#include "absl/strings/str_cat.h"

namespace neuraldbg {
namespace {

std::string Metadata(const grpc::CallbackServerContext& call, const char* key) {
  const auto found = call.client_metadata().find(key);
  return found == call.client_metadata().end() ? "" : std::string(found->second.data(), found->second.size());
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::Status WithWarnings(const ServiceContext& context, const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  for (const DaemonWarning& warning : context.CurrentWarnings()) {
    if (warning.kind != DaemonWarning::Kind::kNotStoring) continue;
    return absl::NotFoundError(absl::StrCat(status.message(), " ", warning.text, " ", warning.remedy));
  }
  return status;
}

absl::StatusOr<Caller> IdentifyCaller(ServiceContext& context, const grpc::CallbackServerContext& call) {
  context.listening.wait();
  return IdentifyPeer(context.policy, {call.peer(), Metadata(call, "authorization"),
                                       Metadata(call, "x-neuraldbg-in-process"), Metadata(call, "x-neuraldbg-uid")});
}

}  // namespace neuraldbg
