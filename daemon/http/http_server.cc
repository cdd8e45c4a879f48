#include "daemon/http/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/http/http_session.h"
#include "daemon/service/listen_address.h"
#include "daemon/service/peer_identity.h"

namespace neuraldbg {
namespace {

using boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// No descriptor is free, say: trying at once would use a core up.
constexpr std::chrono::milliseconds kAcceptPause{100};

absl::StatusOr<PeerPolicy> PolicyOf(const HttpServerOptions& options) {
  PeerPolicy policy;
  policy.daemon_uid = options.daemon_uid;
  policy.allowed_uids = options.allowed_uids;
  if (options.token_file.empty()) return policy;
  absl::StatusOr<std::string> token = ReadTokenFile(options.token_file);
  if (!token.ok()) return token.status();
  policy.token = *std::move(token);
  return policy;
}

}  // namespace

struct HttpServer::Impl {
  // Destroyed as one: with it go the port and all connections.
  struct Loop {
    boost::asio::io_context io{1};
    tcp::acceptor acceptor{io};
    boost::asio::steady_timer accept_again{io};
  };

  explicit Impl(HttpServerOptions given) : options(std::move(given)) {}

  absl::Status Bind(const ListenAddress& wanted);
  ErrorCode BindTo(const tcp::endpoint& endpoint);
  void Accept();
  void Accepted(tcp::socket socket);

  const HttpServerOptions options;
  std::string address;
  HttpContext context;  // before the loop: connections count themselves out of it
  std::unique_ptr<Loop> loop = std::make_unique<Loop>();
  std::thread thread;
};

ErrorCode HttpServer::Impl::BindTo(const tcp::endpoint& endpoint) {
  ErrorCode error;
  tcp::acceptor& acceptor = loop->acceptor;
  acceptor.close(error);
  acceptor.open(endpoint.protocol(), error);
  // The last daemon's closed connections do not keep the port; another daemon that listens there does.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(boost::asio::socket_base::max_listen_connections, error);
  return error;
}

absl::Status HttpServer::Impl::Bind(const ListenAddress& wanted) {
  ErrorCode error;
  tcp::resolver resolver(loop->io);
  const auto found = resolver.resolve(wanted.host, std::to_string(wanted.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("The HTTP address ", wanted.text, " is no address: ", error.message(), "."));
  }
  tcp::endpoint endpoint = found.begin()->endpoint();
  for (std::uint16_t tried = 1;; ++tried) {
    error = BindTo(endpoint);
    if (!error) break;
    const bool next = error == boost::asio::error::address_in_use && tried < options.ports_tried &&
                      endpoint.port() < std::numeric_limits<std::uint16_t>::max();
    if (!next) {
      return absl::UnavailableError(absl::StrCat("The HTTP address ", wanted.text, " cannot be used: ", error.message(),
                                                 "; choose another with --http, or none with "
                                                 "--http off."));
    }
    endpoint.port(static_cast<std::uint16_t>(endpoint.port() + 1));
  }
  const std::uint16_t port = loop->acceptor.local_endpoint().port();
  context.policy.tcp_ports = {port};
  context.bound_host = wanted.host;
  context.patience = options.patience;
  address = absl::StrCat(wanted.text.substr(0, wanted.text.rfind(':')), ":", port);
  return absl::OkStatus();
}

void HttpServer::Impl::Accept() {
  loop->acceptor.async_accept([this](ErrorCode error, tcp::socket socket) {
    if (error == boost::asio::error::operation_aborted) return;
    if (!error) {
      Accepted(std::move(socket));
      return Accept();
    }
    loop->accept_again.expires_after(kAcceptPause);
    loop->accept_again.async_wait([this](ErrorCode stopped) {
      if (!stopped) Accept();
    });
  });
}

// Over a limit the connection is closed without a word: an answer would need the place that is not there.
void HttpServer::Impl::Accepted(tcp::socket socket) {
  ErrorCode error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error || context.connections >= options.connections_max) return;
  const bool stranger = !IdentifyPeer(context.policy, {HttpSession::PeerName(peer), "", "", ""}).ok();
  if (stranger && context.strangers >= options.strangers_max) return;
  std::make_shared<HttpSession>(std::move(socket), context, stranger)->Start();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(HttpServerOptions options) {
  const absl::StatusOr<ListenAddress> wanted = ParseListenAddress(options.address);
  if (!wanted.ok()) return wanted.status();
  if (wanted->is_unix()) return absl::InvalidArgumentError("--http must be HOST:PORT, not a unix socket.");
  absl::StatusOr<PeerPolicy> policy = PolicyOf(options);
  if (!policy.ok()) return policy.status();
  if (absl::Status usable = CheckReachable(*wanted, !policy->token.empty()); !usable.ok()) return usable;
  auto impl = std::make_unique<Impl>(std::move(options));
  impl->context.policy = *std::move(policy);
  if (absl::Status bound = impl->Bind(*wanted); !bound.ok()) return bound;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const { return impl_->address; }

void HttpServer::Route(std::string path, HttpHandler handler) {
  impl_->context.routes[std::move(path)] = std::move(handler);
}

void HttpServer::Serve() {
  impl_->Accept();
  impl_->thread = std::thread([this] { impl_->loop->io.run(); });
}

void HttpServer::Stop() {
  if (impl_->loop == nullptr) return;
  impl_->loop->io.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->loop.reset();
}

}  // namespace neuraldbg
