#include "daemon/service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/service/grpc_log.h"
#include "daemon/service/listen_address.h"
#include "daemon/service/services.h"

namespace neuraldbg {
namespace {

// Requests are a few names; a larger message is a mistake or an attack.
constexpr int kRequestBytesMax = 1 << 20;
// Of one connection; LiveCalls bounds them all.
constexpr int kStreamsPerConnectionMax = 128;
// gRPC's own default: a live client answers a ping in milliseconds, also on a machine under load.
constexpr int kPingAnswerMaxMs = 20'000;

// Restricts what this process creates while a socket is bound: between bind() and chmod() nobody else may connect.
// The umask belongs to the whole process, so this must be short; files of other threads only become more private.
class PrivateUmask {
 public:
  PrivateUmask() : before_(umask(S_IRWXG | S_IRWXO)) {}
  ~PrivateUmask() { umask(before_); }
  PrivateUmask(const PrivateUmask&) = delete;
  PrivateUmask& operator=(const PrivateUmask&) = delete;

 private:
  const mode_t before_;
};

absl::StatusOr<std::vector<ListenAddress>> PrepareAddresses(const ServerOptions& options, const PeerPolicy& policy) {
  std::vector<ListenAddress> addresses;
  for (const std::string& text : options.listen) {
    absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
    if (!address.ok()) return address.status();
    absl::Status usable = CheckReachable(*address, !policy.token.empty());
    if (usable.ok() && address->is_unix()) usable = PrepareUnixSocket(address->unix_path);
    if (!usable.ok()) return usable;
    addresses.push_back(*std::move(address));
  }
  return addresses;
}

}  // namespace

struct GrpcServer::Impl {
  Impl(ServerOptions options, PeerPolicy policy) : context(std::move(options), std::move(policy)) {}

  // Ends with `context.listening` down, whatever happens, so that no call waits for ever.
  absl::Status Listen(const std::vector<ListenAddress>& wanted);

  std::vector<int> Build(const std::vector<ListenAddress>& wanted);  // the bound ports; 0 where that failed

  ServiceContext context;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::vector<std::string> addresses;
  std::vector<std::string> unix_paths;
  std::unique_ptr<grpc::Server> server;
};

std::vector<int> GrpcServer::Impl::Build(const std::vector<ListenAddress>& wanted) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  // Otherwise two daemons share a port and each gets half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.SetMaxReceiveMessageSize(kRequestBytesMax);
  // A client that is stopped, or gone without a word, answers no ping: its connection is closed, and its streams end.
  const auto stall = static_cast<int>(context.stall_max.count());
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, stall);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, std::min(stall, kPingAnswerMaxMs));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  services.push_back(MakeRunService(context));
  services.push_back(MakeSeriesService(context));
  services.push_back(MakeEventService(context));
  services.push_back(MakeDiagnosisService(context));
  for (const auto& service : services) builder.RegisterService(service.get());
  std::vector<int> ports(wanted.size(), 0);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::string uri = wanted[i].is_unix() ? "unix:" + wanted[i].unix_path : wanted[i].text;
    builder.AddListeningPort(uri, grpc::InsecureServerCredentials(), &ports[i]);
  }
  {
    const PrivateUmask only_owner;
    server = builder.BuildAndStart();
  }
  if (server == nullptr) return ports;
  // "" is set by gRPC itself; Kubernetes may probe a service by its name.
  for (const char* name : {"RunService", "SeriesService", "EventService", "DiagnosisService"}) {
    server->GetHealthCheckService()->SetServingStatus(absl::StrCat("neuraldbg.v1.", name), true);
  }
  return ports;
}

absl::Status GrpcServer::Impl::Listen(const std::vector<ListenAddress>& wanted) {
  const std::vector<int> ports = Build(wanted);
  absl::Status status = absl::OkStatus();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::string& text = wanted[i].text;
    if (server == nullptr || ports[i] == 0) {
      status = absl::UnavailableError(absl::StrCat("Cannot listen on ", text, ": is it in use?"));
    } else if (wanted[i].is_unix()) {
      chmod(wanted[i].unix_path.c_str(), S_IRUSR | S_IWUSR);
      unix_paths.push_back(wanted[i].unix_path);
      addresses.push_back("unix:" + wanted[i].unix_path);
    } else {
      context.policy.tcp_ports.push_back(static_cast<std::uint16_t>(ports[i]));
      addresses.push_back(absl::StrCat(text.substr(0, text.rfind(':')), ":", ports[i]));
    }
  }
  context.listening.count_down();
  return status;
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::milliseconds(0)); }

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(ServerOptions options) {
  SilenceGrpcLog();
  PeerPolicy policy;
  policy.daemon_uid = options.daemon_uid;
  policy.allowed_uids = options.allowed_uids;
  policy.in_process_key = MakeInProcessKey();
  if (!options.token_file.empty()) {
    absl::StatusOr<std::string> token = ReadTokenFile(options.token_file);
    if (!token.ok()) return token.status();
    policy.token = *std::move(token);
  }
  absl::StatusOr<std::vector<ListenAddress>> wanted = PrepareAddresses(options, policy);
  if (!wanted.ok()) return wanted.status();
  auto impl = std::make_unique<Impl>(std::move(options), std::move(policy));
  std::unique_ptr<GrpcServer> server(new GrpcServer(std::move(impl)));
  const absl::Status listening = server->impl_->Listen(*wanted);
  if (!listening.ok()) return listening;
  return server;
}

const std::vector<std::string>& GrpcServer::addresses() const { return impl_->addresses; }

void GrpcServer::Drain() {
  if (impl_->server == nullptr) return;
  if (auto* health = impl_->server->GetHealthCheckService()) health->SetServingStatus(false);
}

void GrpcServer::Shutdown(std::chrono::milliseconds patience) {
  Drain();
  impl_->context.live.Close();
  if (impl_->server == nullptr) return;
  impl_->server->Shutdown(std::chrono::system_clock::now() + patience);
  impl_->server->Wait();
  impl_->server.reset();
  for (const std::string& path : impl_->unix_paths) unlink(path.c_str());
}

std::shared_ptr<grpc::Channel> GrpcServer::InProcessChannel() {
  return impl_->server == nullptr ? nullptr : impl_->server->InProcessChannel({});
}

const std::string& GrpcServer::in_process_key() const { return impl_->context.policy.in_process_key; }

std::size_t GrpcServer::active_calls() const { return impl_->context.live.size(); }

}  // namespace neuraldbg
