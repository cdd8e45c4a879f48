// A client that may misbehave: bytes to an HTTP port, and what comes back.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace neuraldbg {

class HttpConnection {
 public:
  // `address`: 127.0.0.1:PORT. `uid`: whose socket it is; only root may choose one.
  explicit HttpConnection(const std::string& address, uid_t uid = ::geteuid()) {
    const uid_t before = ::geteuid();
    if (uid != before && ::seteuid(uid) != 0) std::abort();
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (uid != before && ::seteuid(before) != 0) std::abort();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  }
  ~HttpConnection() { ::close(socket_); }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  bool connected() const { return connected_; }
  void Send(const std::string& bytes) { ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Until `end` was read, or the server ends the connection.
  std::string ReadUntil(const std::string& end) {
    std::string text;
    for (char byte = 0; text.find(end) == std::string::npos && Readable() && ::recv(socket_, &byte, 1, 0) == 1;) {
      text += byte;
    }
    return text;
  }
  std::string ReadToEnd() {
    std::string text;
    char bytes[4096];
    for (ssize_t n = 0; Readable() && (n = ::recv(socket_, bytes, sizeof bytes, 0)) > 0;) {
      text.append(bytes, static_cast<std::size_t>(n));
    }
    return text;
  }

 private:
  bool Readable() {
    constexpr int kHangMs = 60'000;
    pollfd wait{.fd = socket_, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, kHangMs) != 1) std::abort();  // the server neither answers nor ends the connection
    return true;
  }
  int socket_ = -1;
  bool connected_ = false;
};

// The whole answer to GET `path`, headers and body.
inline std::string HttpGet(const std::string& address, const std::string& path, const std::string& headers = "",
                           uid_t uid = ::geteuid()) {
  HttpConnection connection(address, uid);
  connection.Send("GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n" + headers + "\r\n");
  return connection.ReadToEnd();
}

}  // namespace neuraldbg
