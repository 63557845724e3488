#include "tests/support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log.h"

namespace baton::test {

std::string HttpClient::Reply::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

HttpClient::HttpClient(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  CHECK(absl::SimpleAtoi(parts.at(1), &port)) << address;
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  PCHECK(fd_ >= 0);
  const timeval patience = absl::ToTimeval(kPatience);
  PCHECK(setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience,
                    sizeof(patience)) == 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  CHECK_EQ(inet_pton(AF_INET, parts.at(0).c_str(), &to.sin_addr), 1);
  PCHECK(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0)
      << address;
}

HttpClient::~HttpClient() { Close(); }

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void HttpClient::Send(const std::string& method, const std::string& path,
                      const std::string& body, const Headers& headers) {
  std::string request =
      absl::StrCat(method, " ", path, " HTTP/1.1\r\n", "Host: localhost\r\n");
  for (const auto& [name, value] : headers) {
    absl::StrAppend(&request, name, ": ", value, "\r\n");
  }
  if (method == "POST") {
    absl::StrAppend(&request, "Content-Type: application/json\r\n",
                    "Content-Length: ", body.size(), "\r\n");
  }
  absl::StrAppend(&request, "\r\n", body);
  size_t sent = 0;
  while (sent < request.size()) {
    const ssize_t n =
        send(fd_, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    // The server may have said no before it read all.
    if (n < 0) break;
    sent += static_cast<size_t>(n);
  }
}

bool HttpClient::Fill() {
  char chunk[16384];
  const ssize_t got = read(fd_, chunk, sizeof(chunk));
  EXPECT_GE(got, 0) << "nothing came for " << kPatience;
  if (got <= 0) return false;
  buffer_.append(chunk, static_cast<size_t>(got));
  return true;
}

std::string HttpClient::ReadLine() {
  size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!Fill()) return "";
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

HttpClient::Reply HttpClient::ReadHead() {
  Reply reply;
  const std::vector<std::string> status = absl::StrSplit(ReadLine(), ' ');
  if (status.size() >= 2) {
    EXPECT_TRUE(absl::SimpleAtoi(status[1], &reply.status));
  }
  while (true) {
    const std::string line = ReadLine();
    if (line.empty()) break;
    const std::pair<std::string, std::string> header =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    reply.headers.emplace_back(absl::AsciiStrToLower(header.first),
                               header.second);
  }
  chunked_ = reply.Header("transfer-encoding") == "chunked";
  body_over_ = false;
  events_.clear();
  return reply;
}

std::string HttpClient::ReadChunk() {
  size_t size = 0;
  const std::string line = ReadLine();
  EXPECT_TRUE(absl::SimpleHexAtoi(line, &size)) << "\"" << line << "\"";
  while (buffer_.size() < size + 2) {
    if (!Fill()) {
      ADD_FAILURE() << "the connection ended within a chunk";
      return "";
    }
  }
  std::string chunk = buffer_.substr(0, size);
  buffer_.erase(0, size + 2);
  return chunk;
}

std::string HttpClient::ReadBody(const Reply& head) {
  std::string body;
  if (chunked_) {
    for (std::string chunk = ReadChunk(); !chunk.empty(); chunk = ReadChunk()) {
      body += chunk;
    }
    return body;
  }
  size_t length = 0;
  if (!absl::SimpleAtoi(head.Header("content-length"), &length)) return body;
  while (buffer_.size() < length && Fill()) {
  }
  body = buffer_.substr(0, length);
  buffer_.erase(0, body.size());
  return body;
}

HttpClient::Reply HttpClient::ReadReply() {
  Reply reply = ReadHead();
  if (reply.status != 304) reply.body = ReadBody(reply);
  return reply;
}

HttpClient::Reply HttpClient::Get(const std::string& path,
                                  const Headers& headers) {
  Send("GET", path, "", headers);
  return ReadReply();
}

HttpClient::Reply HttpClient::Post(const std::string& path,
                                   const std::string& body,
                                   const Headers& headers) {
  Send("POST", path, body, headers);
  return ReadReply();
}

std::optional<std::string> HttpClient::ReadEvent() {
  std::string event;
  for (;;) {
    size_t end = 0;
    while ((end = events_.find("\n\n")) == std::string::npos) {
      if (body_over_) return std::nullopt;
      const std::string chunk = ReadChunk();
      body_over_ = chunk.empty();
      events_ += chunk;
    }
    event = events_.substr(0, end);
    events_.erase(0, end + 2);
    if (!absl::StartsWith(event, ":")) break;
    ++comments_;
  }
  event_name_.clear();
  constexpr absl::string_view kEvent = "event: ";
  if (absl::StartsWith(event, kEvent)) {
    const size_t line = event.find('\n');
    event_name_ = event.substr(kEvent.size(), line - kEvent.size());
    event.erase(0, line + 1);
  }
  EXPECT_EQ(event.rfind("data: ", 0), 0u) << event;
  return event.substr(6);
}

}  // namespace baton::test
