#include "tests/router/http/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/log.h"

namespace baton::router::http {
namespace {

constexpr int kTimeoutSeconds = 20;

}  // namespace

RawClient::RawClient(const std::string& address, int receive_bytes,
                     ssl_ctx_st* tls) {
  const size_t colon = address.rfind(':');
  int port = 0;
  CHECK(absl::SimpleAtoi(address.substr(colon + 1), &port)) << address;
  const bool v6 = address.front() == '[';
  fd_ =
      ScopedFd(socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(fd_.valid());
  const timeval timeout = {kTimeoutSeconds, 0};
  setsockopt(fd(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(fd(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  const int one = 1;
  setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (receive_bytes != 0) {
    setsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &receive_bytes,
               sizeof(receive_bytes));
  }
  sockaddr_in in = {};
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<uint16_t>(port));
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 in6 = {};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = in.sin_port;
  in6.sin6_addr = in6addr_loopback;
  const int result =
      v6 ? connect(fd(), reinterpret_cast<sockaddr*>(&in6), sizeof(in6))
         : connect(fd(), reinterpret_cast<sockaddr*>(&in), sizeof(in));
  EXPECT_EQ(result, 0) << "connect to " << address;
  if (tls == nullptr) return;
  ssl_ = SSL_new(tls);
  SSL_set_fd(ssl_, fd());
  tls_ok_ = SSL_connect(ssl_) == 1;
}

RawClient::~RawClient() { SSL_free(ssl_); }

bool RawClient::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ssl_ != nullptr
            ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
            : send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void RawClient::EndOutput() { shutdown(fd(), SHUT_WR); }

void RawClient::Close() { fd_ = ScopedFd(); }

void RawClient::Reset() {
  const linger now = {1, 0};
  setsockopt(fd(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

bool RawClient::Fill() {
  char bytes[16384];
  const ssize_t got = ssl_ != nullptr ? SSL_read(ssl_, bytes, sizeof(bytes))
                                      : recv(fd(), bytes, sizeof(bytes), 0);
  if (got <= 0) {
    EXPECT_FALSE(got < 0 && errno == EAGAIN) << "nothing came for 20 s";
    return false;
  }
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

std::string RawClient::TakeFront(size_t size) {
  std::string front = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return front;
}

std::string RawClient::ReadUntil(absl::string_view marker) {
  size_t at;
  while ((at = buffer_.find(marker.data(), 0, marker.size())) ==
         std::string::npos) {
    if (!Fill()) return TakeFront(buffer_.size());
  }
  return TakeFront(at + marker.size());
}

std::string RawClient::ReadToEnd() {
  while (Fill()) {
  }
  return TakeFront(buffer_.size());
}

bool RawClient::Ended() {
  if (!buffer_.empty()) return false;
  return !Fill();
}

RawAnswer RawClient::Read(bool head) {
  RawAnswer answer;
  const std::string text = ReadUntil("\r\n\r\n");
  const std::vector<std::string> lines = absl::StrSplit(text, "\r\n");
  const std::vector<std::string> words = absl::StrSplit(lines[0], ' ');
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &answer.status)) {
    return answer;
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> header =
        absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    answer.headers[absl::AsciiStrToLower(header.first)] = header.second;
  }
  if (answer.headers.count("transfer-encoding") > 0 && !head) {
    while (true) {
      const std::string line = ReadUntil("\r\n");
      if (line.empty()) return answer;
      const size_t size = std::strtoul(line.c_str(), nullptr, 16);
      while (buffer_.size() < size + 2) {
        if (!Fill()) {
          answer.body += TakeFront(buffer_.size());
          return answer;
        }
      }
      answer.body += TakeFront(size);
      EXPECT_EQ(TakeFront(2), "\r\n");
      if (size == 0) break;
    }
    answer.whole = true;
  } else if (answer.headers.count("content-length") > 0) {
    size_t size = 0;
    EXPECT_TRUE(absl::SimpleAtoi(answer.headers["content-length"], &size));
    if (head) size = 0;
    while (buffer_.size() < size && Fill()) {
    }
    answer.whole = buffer_.size() >= size;
    answer.body = TakeFront(size);
  } else {
    answer.whole = true;
  }
  return answer;
}

}  // namespace baton::router::http
