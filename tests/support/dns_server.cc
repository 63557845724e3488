#include "tests/support/dns_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::test {
namespace {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kMaxUdpBytes = 512;
constexpr uint16_t kTypeA = 1;
constexpr uint16_t kTypeAaaa = 28;
// Of a header's second word: an answer, to a question that wants recursion.
constexpr uint16_t kAnswerFlags = 0x8180;
constexpr uint16_t kTruncated = 0x0200;
constexpr uint16_t kServerFailure = 2;
constexpr uint16_t kNoSuchName = 3;

void Append16(uint16_t word, std::string* out) {
  out->push_back(static_cast<char>(word >> 8));
  out->push_back(static_cast<char>(word & 255));
}

uint16_t Read16(const std::string& from, size_t at) {
  return static_cast<uint16_t>((static_cast<uint8_t>(from[at]) << 8) |
                               static_cast<uint8_t>(from[at + 1]));
}

// The bytes of the address when it is of that record type; otherwise empty.
std::string AddressBytes(const std::string& ip, uint16_t type) {
  char bytes[16];
  if (type == kTypeA && inet_pton(AF_INET, ip.c_str(), bytes) == 1) {
    return std::string(bytes, 4);
  }
  if (type == kTypeAaaa && inet_pton(AF_INET6, ip.c_str(), bytes) == 1) {
    return std::string(bytes, 16);
  }
  return "";
}

struct Asked {
  std::string name;
  uint16_t type = 0;
  size_t end = 0;  // of the question's section
};

// False when it is no question.
bool ReadQuestion(const std::string& message, Asked* asked) {
  if (message.size() < kHeaderBytes || Read16(message, 4) != 1) return false;
  size_t at = kHeaderBytes;
  while (at < message.size() && message[at] != 0) {
    const auto length = static_cast<uint8_t>(message[at]);
    if (length > 63 || at + 1 + length > message.size()) return false;
    if (!asked->name.empty()) asked->name += '.';
    asked->name += absl::AsciiStrToLower(message.substr(at + 1, length));
    at += 1 + length;
  }
  if (at + 5 > message.size()) return false;
  asked->type = Read16(message, at + 1);
  asked->end = at + 5;
  return true;
}

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

DnsServer::DnsServer()
    : stop_(ScopedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  // The TCP port that is free may be taken for UDP: another one then.
  for (int tries = 0; tries < 20 && address_.empty(); ++tries) {
    tcp_ = ScopedFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    udp_ = ScopedFd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = Loopback(0);
    socklen_t size = sizeof(at);
    auto* const raw = reinterpret_cast<sockaddr*>(&at);
    PCHECK(bind(tcp_.get(), raw, size) == 0) << "bind";
    PCHECK(listen(tcp_.get(), 16) == 0) << "listen";
    PCHECK(getsockname(tcp_.get(), raw, &size) == 0) << "getsockname";
    if (bind(udp_.get(), raw, size) != 0) continue;
    address_ = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
  }
  CHECK(!address_.empty()) << "no port is free for UDP and TCP";
  thread_ = std::thread([this] { Run(); });
}

DnsServer::~DnsServer() {
  const uint64_t one = 1;
  PCHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one)) << "eventfd";
  thread_.join();
}

void DnsServer::Set(const std::string& name,
                    const std::vector<std::string>& ips) {
  absl::MutexLock lock(&mu_);
  table_[name] = ips;
}

void DnsServer::Erase(const std::string& name) {
  absl::MutexLock lock(&mu_);
  table_.erase(name);
}

void DnsServer::SetMode(Mode mode) {
  absl::MutexLock lock(&mu_);
  mode_ = mode;
}

int DnsServer::num_questions() const {
  absl::MutexLock lock(&mu_);
  return questions_;
}

int DnsServer::num_tcp_questions() const {
  absl::MutexLock lock(&mu_);
  return tcp_questions_;
}

void DnsServer::Run() {
  while (true) {
    std::vector<pollfd> fds = {{.fd = stop_.get(), .events = POLLIN},
                               {.fd = udp_.get(), .events = POLLIN},
                               {.fd = tcp_.get(), .events = POLLIN}};
    for (const ScopedFd& connection : connections_) {
      fds.push_back({.fd = connection.get(), .events = POLLIN});
    }
    if (poll(fds.data(), fds.size(), /*timeout=*/-1) < 0) continue;
    if (fds[0].revents != 0) return;
    if (fds[1].revents != 0) ServeUdp();
    for (size_t i = 3; i < fds.size(); ++i) {
      if (fds[i].revents == 0 || ServeTcp(fds[i].fd)) continue;
      std::erase_if(connections_, [&](const ScopedFd& connection) {
        return connection.get() == fds[i].fd;
      });
    }
    if (fds[2].revents == 0) continue;
    ScopedFd accepted(accept4(tcp_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!accepted.valid()) continue;
    const timeval patience = {.tv_sec = 5, .tv_usec = 0};
    setsockopt(accepted.get(), SOL_SOCKET, SO_RCVTIMEO, &patience,
               sizeof(patience));
    connections_.push_back(std::move(accepted));
  }
}

void DnsServer::ServeUdp() {
  char buffer[4096];
  sockaddr_in from = {};
  socklen_t size = sizeof(from);
  auto* const raw = reinterpret_cast<sockaddr*>(&from);
  const ssize_t got =
      recvfrom(udp_.get(), buffer, sizeof(buffer), 0, raw, &size);
  if (got <= 0) return;
  const std::string answer =
      AnswerTo(std::string(buffer, static_cast<size_t>(got)), /*tcp=*/false);
  if (answer.empty()) return;
  // Who does not get it asks again.
  if (sendto(udp_.get(), answer.data(), answer.size(), 0, raw, size) < 0) {
    PLOG(WARNING) << "sendto";
  }
}

bool DnsServer::ServeTcp(int fd) {
  char length[2];
  if (recv(fd, length, sizeof(length), MSG_WAITALL) != sizeof(length)) {
    return false;
  }
  std::string message(Read16(std::string(length, 2), 0), '\0');
  if (recv(fd, message.data(), message.size(), MSG_WAITALL) !=
      static_cast<ssize_t>(message.size())) {
    return false;
  }
  const std::string answer = AnswerTo(message, /*tcp=*/true);
  if (answer.empty()) return true;
  std::string framed;
  Append16(static_cast<uint16_t>(answer.size()), &framed);
  framed += answer;
  return send(fd, framed.data(), framed.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(framed.size());
}

std::string DnsServer::AnswerTo(const std::string& question, bool tcp) {
  absl::MutexLock lock(&mu_);
  Asked asked;
  if (!ReadQuestion(question, &asked)) return "";
  ++questions_;
  tcp_questions_ += tcp ? 1 : 0;
  if (mode_ == Mode::kSilent) return "";
  std::string records;
  uint16_t count = 0;
  uint16_t flags = kAnswerFlags;
  const auto it = table_.find(asked.name);
  if (mode_ == Mode::kServerFailure) {
    flags |= kServerFailure;
  } else if (it == table_.end()) {
    flags |= kNoSuchName;
  } else {
    for (const std::string& ip : it->second) {
      const std::string bytes = AddressBytes(ip, asked.type);
      if (bytes.empty()) continue;
      ++count;
      Append16(0xC000 | kHeaderBytes, &records);  // the question's name
      Append16(asked.type, &records);
      Append16(1, &records);  // class IN
      Append16(0, &records);  // seconds to live, high and low word
      Append16(1, &records);
      Append16(static_cast<uint16_t>(bytes.size()), &records);
      records += bytes;
    }
  }
  const std::string section =
      question.substr(kHeaderBytes, asked.end - kHeaderBytes);
  if (!tcp && kHeaderBytes + section.size() + records.size() > kMaxUdpBytes) {
    flags |= kTruncated;
    records.clear();
    count = 0;
  }
  std::string answer = question.substr(0, 2);
  for (const uint16_t word :
       {flags, uint16_t{1}, count, uint16_t{0}, uint16_t{0}}) {
    Append16(word, &answer);
  }
  return absl::StrCat(answer, section, records);
}

}  // namespace baton::test
