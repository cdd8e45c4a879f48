// The way of every unary call: who asks, a reader, the question, the status. No service can forget one of them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/service/query.h"
#include "daemon/service/services.h"

namespace neuraldbg {

// Codes are the same numbers in both; the only place where one becomes the other.
grpc::Status ToGrpcStatus(const absl::Status& status);

absl::StatusOr<Caller> IdentifyCaller(ServiceContext& context, const grpc::CallbackServerContext& call);

// NOT_FOUND while nothing is stored may mean a run that is not stored: says so.
absl::Status WithWarnings(const ServiceContext& context, const absl::Status& status);

// A question that also tells the caller what keeps the daemon from recording.
template <typename Request, typename Response>
using WarningQuery = absl::StatusOr<Response> (*)(StoreReader&, const Caller&, const Request&, Warnings);

template <typename Request, typename Response>
using Query = absl::StatusOr<Response> (*)(StoreReader&, const Caller&, const Request&);

template <typename Request, typename Response, typename Asked>
absl::Status AnswerInto(ServiceContext& context, const grpc::CallbackServerContext& call, const Request& request,
                        const Asked& query, Response& response) {
  if (call.IsCancelled()) return absl::CancelledError("The caller gave up.");
  const absl::StatusOr<Caller> caller = IdentifyCaller(context, call);
  if (!caller.ok()) return caller.status();
  absl::StatusOr<ReaderPool::Lease> reader = context.readers.Borrow();
  if (!reader.ok()) return reader.status();
  if (std::chrono::system_clock::now() >= call.deadline()) return absl::DeadlineExceededError("Too late.");
  absl::StatusOr<Response> answer = query(**reader, *caller, request);
  if (!answer.ok()) return WithWarnings(context, answer.status());
  response = *std::move(answer);
  return absl::OkStatus();
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* Answer(ServiceContext& context, grpc::CallbackServerContext* call, const Request* request,
                                 Response* response, Query<Request, Response> query) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(AnswerInto(context, *call, *request, query, *response)));
  return reactor;
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* Answer(ServiceContext& context, grpc::CallbackServerContext* call, const Request* request,
                                 Response* response, WarningQuery<Request, Response> query) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const auto asked = [&](StoreReader& reader, const Caller& caller, const Request& question) {
    return query(reader, caller, question, context.CurrentWarnings());
  };
  reactor->Finish(ToGrpcStatus(AnswerInto(context, *call, *request, asked, *response)));
  return reactor;
}

}  // namespace neuraldbg
