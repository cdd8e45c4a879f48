// The HTTP port against clients that ask rightly, wrongly, slowly, or for somebody else.
#include "daemon/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "tests/daemon/http/http_client.h"

namespace neuraldbg {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uid_t kNobody = 65534;
constexpr char kToken[] = "a-token-of-more-than-sixteen-characters";
constexpr std::chrono::milliseconds kShort{200};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    if (options.address.empty()) options.address = "127.0.0.1:0";
    options.daemon_uid = ::geteuid();
    auto server = HttpServer::Listen(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->Route("/hello", [this](const HttpRequest& request) {
      ++asked_;
      return HttpResponse{.body = "hello " + request.query + "\n"};
    });
    server_->Route("/large", [](const HttpRequest&) { return HttpResponse{.body = std::string(64 << 20, 'x')}; });
    server_->Route("/broken", [](const HttpRequest&) -> HttpResponse { throw std::runtime_error("no"); });
    server_->Serve();
  }
  std::string address() const { return server_->address(); }
  std::string Get(const std::string& path, const std::string& headers = "") {
    return HttpGet(address(), path, headers);
  }
  // One request with exactly these lines.
  std::string Ask(const std::string& request) {
    HttpConnection connection(address());
    connection.Send(request);
    return connection.ReadToEnd();
  }
  std::string TokenFile() {
    std::string path = ::testing::TempDir() + "http-token." + std::to_string(::getpid());
    std::ofstream(path) << kToken << "\n";
    ::chmod(path.c_str(), 0600);
    return path;
  }

  std::atomic<int> asked_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, Route_IsAnsweredWithTheHeadersOfALockedDoor) {
  Start();
  const std::string answer = Get("/hello?a=b");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nhello a=b\n"));
  for (const char* header : {"Content-Security-Policy: default-src 'none'", "X-Content-Type-Options: nosniff",
                             "Cache-Control: no-store", "Content-Length: 10"}) {
    EXPECT_THAT(answer, HasSubstr(header));
  }
  EXPECT_THAT(answer, Not(HasSubstr("Access-Control-")));
}

TEST_F(HttpServerTest, Head_HasTheLengthAndNoBody) {
  Start();
  const std::string answer = Ask("HEAD /hello?a=b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 10"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << answer;
}

TEST_F(HttpServerTest, OneConnection_CarriesManyRequestsAlsoAtOnce) {
  Start();
  HttpConnection connection(address());
  const std::string request = "GET /hello?x HTTP/1.1\r\nHost: localhost\r\n\r\n";
  connection.Send(request + request);
  EXPECT_THAT(connection.ReadUntil("hello x\n"), HasSubstr("hello x"));
  EXPECT_THAT(connection.ReadUntil("hello x\n"), HasSubstr("hello x"));
  connection.Send(request);
  EXPECT_THAT(connection.ReadUntil("hello x\n"), HasSubstr("hello x"));
}

TEST_F(HttpServerTest, UnknownPathAndMethod_AreSaid) {
  Start();
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/hello/"), HasSubstr("this port has /broken, /hello, /large.\n"));
  const std::string post = Ask("POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\na=b");
  EXPECT_THAT(post, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(post, HasSubstr("Allow: GET, HEAD"));
  EXPECT_THAT(post, HasSubstr("\r\n\r\nThis path is read with GET or HEAD.\n"));
  EXPECT_EQ(asked_, 0);
}

TEST_F(HttpServerTest, ABody_IsNeverTakenForTheNextRequest) {
  Start();
  const std::string smuggled = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
  Ask("GET /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(smuggled.size()) + "\r\n\r\n" +
      smuggled);
  EXPECT_EQ(asked_, 1);
}

TEST_F(HttpServerTest, WhatIsNoRequest_IsRefused) {
  Start();
  EXPECT_THAT(Ask("\x16\x03\x01 hello\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask("GET /hello HTTP/1.1\r\n\r\n"), HasSubstr("needs one Host header"));
  EXPECT_THAT(Ask("GET /hello HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"),
              HasSubstr("needs one Host header"));
  EXPECT_EQ(asked_, 0);
}

TEST_F(HttpServerTest, AnOversizedHeader_IsRefusedAndTheLargestOneServed) {
  Start();
  EXPECT_THAT(Get("/hello", "X-Cookie: " + std::string(12 << 10, 'x') + "\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get("/hello", "X-Cookie: " + std::string(200 << 10, 'x') + "\r\n"), StartsWith("HTTP/1.1 431"));
  EXPECT_EQ(asked_, 1);
}

TEST_F(HttpServerTest, AnotherHostOrOrigin_IsForbidden) {
  Start();
  EXPECT_THAT(Ask("GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n"), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(Get("/hello", "Origin: http://evil.example\r\n"), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(Get("/hello", "Origin: null\r\n"), StartsWith("HTTP/1.1 403"));
  EXPECT_EQ(asked_, 0);
  EXPECT_THAT(Get("/hello", "Origin: http://" + address() + "\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AHandlerThatThrows_CostsItsAnswerOnly) {
  Start();
  EXPECT_THAT(Get("/broken"), StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(Get("/hello"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, SlowAndIdleClients_AreCutOffAndHoldNobodyUp) {
  HttpServerOptions options;
  options.patience = kShort;
  Start(std::move(options));
  HttpConnection silent(address()), slow(address()), idle(address());
  slow.Send("GET /hello HTTP/1.1\r\nHo");
  idle.Send("GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(Get("/hello"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(silent.ReadToEnd(), "");
  EXPECT_EQ(slow.ReadToEnd(), "");
  EXPECT_TRUE(idle.ReadToEnd().ends_with("hello \n"));
}

TEST_F(HttpServerTest, AClientThatTakesNoAnswer_GivesItsPlaceBack) {
  HttpServerOptions options;
  options.patience = kShort;
  options.connections_max = 1;
  Start(std::move(options));
  HttpConnection stalled(address());
  stalled.Send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(stalled.ReadUntil("\r\n"), StartsWith("HTTP/1.1 200"));
  while (!Get("/hello").starts_with("HTTP/1.1 200")) std::this_thread::yield();  // the test's time limit ends it
}

TEST_F(HttpServerTest, BeyondTheLimit_ConnectionsAreClosed) {
  HttpServerOptions options;
  options.connections_max = 2;
  Start(std::move(options));
  HttpConnection first(address());
  auto second = std::make_unique<HttpConnection>(address());
  for (HttpConnection* open : {&first, second.get()}) {
    open->Send("GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
    open->ReadUntil("hello \n");
  }
  EXPECT_EQ(Get("/hello"), "");
  second.reset();
  while (!Get("/hello").starts_with("HTTP/1.1 200")) std::this_thread::yield();
}

TEST_F(HttpServerTest, AnotherUser_NeedsTheToken) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can open another user's socket";
  HttpServerOptions options;
  options.token_file = TokenFile();
  Start(std::move(options));
  const std::string refused = HttpGet(address(), "/hello", "", kNobody);
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(refused, HasSubstr("WWW-Authenticate: Bearer"));
  EXPECT_THAT(refused, HasSubstr("User 65534 may not use the neuraldbgd of user 0"));
  EXPECT_THAT(HttpGet(address(), "/hello", "Authorization: Bearer " + std::string(kToken) + "x\r\n", kNobody),
              StartsWith("HTTP/1.1 401"));
  EXPECT_EQ(asked_, 0);
  EXPECT_THAT(HttpGet(address(), "/hello", "Authorization: Bearer " + std::string(kToken) + "\r\n", kNobody),
              StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AConfiguredUser_IsServedAsHimself) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can open another user's socket";
  HttpServerOptions options;
  options.allowed_uids = {kNobody};
  Start(std::move(options));
  EXPECT_THAT(HttpGet(address(), "/hello", "", kNobody), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, Strangers_CannotTakeEveryPlace) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can open another user's socket";
  HttpServerOptions options;
  options.connections_max = 4;
  options.strangers_max = 2;
  Start(std::move(options));
  HttpConnection first(address(), kNobody), second(address(), kNobody), third(address(), kNobody);
  EXPECT_EQ(third.ReadToEnd(), "");
  EXPECT_THAT(Get("/hello"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, Stop_EndsOpenConnectionsAndFreesThePort) {
  Start();
  const std::string before = address();
  HttpConnection idle(before), half(before), stalled(before);
  half.Send("GET /hello HTTP/1.1\r\n");
  stalled.Send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(stalled.ReadUntil("\r\n"), StartsWith("HTTP/1.1 200"));
  server_->Stop();
  EXPECT_EQ(idle.ReadToEnd(), "");
  EXPECT_EQ(half.ReadToEnd(), "");
  EXPECT_FALSE(HttpConnection(before).connected());
  HttpServerOptions again;
  again.address = before;
  Start(std::move(again));
  EXPECT_THAT(Get("/hello"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ATakenPort_IsNamedOrPassedOver) {
  Start();
  HttpServerOptions options;
  options.address = address();
  const auto refused = HttpServer::Listen(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(address() + " cannot be used"));
  options.ports_tried = 50;
  const auto next = HttpServer::Listen(options);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_NE((*next)->address(), address());
}

TEST_F(HttpServerTest, AnAddressThatOthersReach_NeedsAToken) {
  HttpServerOptions options;
  options.address = "0.0.0.0:0";
  EXPECT_THAT(std::string(HttpServer::Listen(options).status().message()), HasSubstr("set token_file"));
  options.token_file = TokenFile();
  EXPECT_TRUE(HttpServer::Listen(options).ok());
}

}  // namespace
}  // namespace neuraldbg
