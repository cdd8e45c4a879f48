#include "daemon/http/http_session.h"

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/verb.hpp>
#include <boost/beast/http/write.hpp>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/http/http_access.h"

namespace neuraldbg {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using http::field;

// A browser sends the cookies of all ports of a host; Chrome and nginx stop at the same order of size.
constexpr std::uint32_t kHeaderBytesMax = 16 * 1024;
// Header and what came with it in the same packet.
constexpr std::size_t kBufferBytesMax = std::size_t{2} * kHeaderBytesMax;
// What a client that was refused may still have on its way.
constexpr std::size_t kLingerBytesMax = 256UL * 1024;
constexpr std::chrono::seconds kLingerMax{2};

// Nothing here is a page yet: a browser that is led to it runs nothing and shows it in nobody's frame.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpResponse Refusal(http::status status, const std::string& sentence) {
  return {.status = static_cast<unsigned>(status), .body = sentence + "\n"};
}

std::string Text(beast::string_view view) { return {view.data(), view.size()}; }

// A socket for both families names IPv4 addresses as "::ffff:127.0.0.1".
boost::asio::ip::address Unmapped(const boost::asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6());
}

}  // namespace

HttpSession::HttpSession(Socket socket, HttpContext& context, bool stranger)
    : context_(context), stranger_(stranger), stream_(std::move(socket)), buffer_(kBufferBytesMax) {
  ++context_.connections;
  context_.strangers += stranger_ ? 1 : 0;
}

HttpSession::~HttpSession() {
  --context_.connections;
  context_.strangers -= stranger_ ? 1 : 0;
}

std::string HttpSession::PeerName(const boost::asio::ip::tcp::endpoint& endpoint) {
  const auto address = Unmapped(endpoint.address());
  const std::string text = address.to_string();
  return absl::StrCat(address.is_v4() ? "ipv4:" : "ipv6:[", text, address.is_v4() ? ":" : "]:", endpoint.port());
}

void HttpSession::Read() {
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(kHeaderBytesMax);
  stream_.expires_after(context_.patience);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](beast::error_code error, std::size_t) { self->OnHeader(error); });
}

void HttpSession::OnHeader(beast::error_code error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return Send(Refusal(http::status::request_header_fields_too_large,
                        absl::StrCat("The header of a request may have ", kHeaderBytesMax, " bytes.")),
                false);
  }
  const bool malformed = error && error.category() == make_error_code(http::error::bad_method).category();
  if (malformed && error != http::error::end_of_stream && error != http::error::partial_message) {
    return Send(Refusal(http::status::bad_request, absl::StrCat("This is no HTTP request: ", error.message(), ".")),
                false);
  }
  if (error) return;  // gone, or too slow: the connection closes with the last reference
  // No route takes a body, so none is read; what follows one on the connection cannot be told from it.
  const bool body = parser_->chunked() || parser_->content_length().value_or(0) > 0;
  const bool keep = parser_->keep_alive() && !body;
  HttpResponse response = Respond();
  // Whoever was turned away gives the place back.
  const bool answered = response.status < static_cast<unsigned>(http::status::bad_request) ||
                        response.status == static_cast<unsigned>(http::status::not_found);
  Send(std::move(response), keep && answered);
}

absl::StatusOr<Caller> HttpSession::Admit(HttpResponse& refusal) const {
  const auto& request = parser_->get();
  if (request.count(field::host) != 1) {
    refusal = Refusal(http::status::bad_request, "A request needs one Host header.");
    return absl::InvalidArgumentError("host");
  }
  const std::string host = Text(request[field::host]);
  beast::error_code error;
  const auto local = Unmapped(stream_.socket().local_endpoint(error).address());
  absl::Status meant = CheckHost(host, context_.bound_host, error ? "" : local.to_string());
  if (meant.ok() && request.count(field::origin) > 0) meant = CheckOrigin(Text(request[field::origin]), host);
  if (!meant.ok()) {
    refusal = Refusal(http::status::forbidden, std::string(meant.message()));
    return meant;
  }
  const auto remote = stream_.socket().remote_endpoint(error);
  if (error) return absl::UnavailableError("The client is gone.");
  absl::StatusOr<Caller> caller =
      IdentifyPeer(context_.policy, {PeerName(remote), Text(request[field::authorization]), "", ""});
  if (!caller.ok()) refusal = Refusal(http::status::unauthorized, std::string(caller.status().message()));
  return caller;
}

HttpResponse HttpSession::Respond() {
  HttpResponse refusal = Refusal(http::status::unauthorized, "The client is gone.");
  const absl::StatusOr<Caller> caller = Admit(refusal);
  return caller.ok() ? AskRoute(*caller) : refusal;
}

HttpResponse HttpSession::AskRoute(Caller caller) {
  const auto& request = parser_->get();
  const std::string target = Text(request.target());
  const std::size_t mark = target.find('?');
  const auto route = context_.routes.find(target.substr(0, mark));
  if (route == context_.routes.end()) {
    std::vector<std::string> paths;
    paths.reserve(context_.routes.size());
    for (const auto& [path, handler] : context_.routes) paths.push_back(path);
    return Refusal(http::status::not_found,
                   absl::StrCat("There is nothing at this path; this port has ", absl::StrJoin(paths, ", "), "."));
  }
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    return Refusal(http::status::method_not_allowed, "This path is read with GET or HEAD.");
  }
  try {
    return route->second(
        {.path = route->first, .query = mark == std::string::npos ? "" : target.substr(mark + 1), .caller = caller});
  } catch (const std::exception&) {  // out of memory: this answer fails, the port and the daemon stay
    return Refusal(http::status::internal_server_error, "The answer could not be made.");
  }
}

void HttpSession::Send(HttpResponse response, bool keep) {
  const auto& request = parser_->get();
  message_ = std::make_unique<Message>();
  Message& message = *message_;
  message.version(request.version() == 10 ? 10 : 11);
  message.result(response.status);
  message.set(field::content_type, response.content_type);
  message.set(field::cache_control, "no-store");
  message.set("Content-Security-Policy", kContentSecurityPolicy);
  message.set("X-Content-Type-Options", "nosniff");
  message.set("Referrer-Policy", "no-referrer");
  message.set("Cross-Origin-Resource-Policy", "same-origin");
  if (message.result() == http::status::unauthorized) message.set(field::www_authenticate, "Bearer");
  if (message.result() == http::status::method_not_allowed) message.set(field::allow, "GET, HEAD");
  message.keep_alive(keep);
  message.content_length(response.body.size());  // of HEAD, too, which gets no body
  if (request.method() != http::verb::head) message.body() = std::move(response.body);
  stream_.expires_after(context_.patience);
  http::async_write(stream_, message,
                    [self = shared_from_this()](beast::error_code error, std::size_t) { self->OnSent(error); });
}

void HttpSession::OnSent(beast::error_code error) {
  if (error) return;
  if (message_->keep_alive()) {
    message_.reset();
    return Read();
  }
  stream_.socket().shutdown(Socket::shutdown_send, error);
  stream_.expires_after(kLingerMax);
  Linger();
}

void HttpSession::Linger() {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kBufferBytesMax),
                          [self = shared_from_this()](beast::error_code error, std::size_t bytes) {
                            self->lingered_bytes_ += bytes;
                            if (!error && self->lingered_bytes_ < kLingerBytesMax) self->Linger();
                          });
}

}  // namespace neuraldbg
