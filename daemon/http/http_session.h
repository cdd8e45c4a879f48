// One HTTP connection: reads request after request, checks each, answers it. Lives on the server's thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "daemon/http/http_message.h"
#include "daemon/service/peer_identity.h"

namespace neuraldbg {

// What all connections share. Owner: the server; outlives them. Constant once the first one is there, but for the
// counts.
struct HttpContext {
  PeerPolicy policy;
  std::string bound_host;  // as configured, without brackets
  std::map<std::string, HttpHandler> routes;
  std::chrono::milliseconds patience{};
  std::size_t connections = 0, strangers = 0;
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // `stranger`: counted as one while it lives.
  HttpSession(Socket socket, HttpContext& context, bool stranger);
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  void Start() { Read(); }

  // The peer as daemon/service/peer_identity.h wants it.
  static std::string PeerName(const boost::asio::ip::tcp::endpoint& endpoint);

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::empty_body>;
  using Message = boost::beast::http::response<boost::beast::http::string_body>;

  void Read();
  void OnHeader(boost::beast::error_code error);
  // Everything that must hold before a route is asked, and then the route.
  HttpResponse Respond();
  HttpResponse AskRoute(Caller caller);
  absl::StatusOr<Caller> Admit(HttpResponse& refusal) const;
  void Send(HttpResponse response, bool keep);
  void OnSent(boost::beast::error_code error);
  // After the last answer: what the client still sends is thrown away, because closing a socket with unread data
  // resets the connection, and the client may lose the answer.
  void Linger();

  HttpContext& context_;
  const bool stranger_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  std::unique_ptr<Parser> parser_;
  std::unique_ptr<Message> message_;
  std::size_t lingered_bytes_ = 0;
};

}  // namespace neuraldbg
