#include "router/http/listen_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace baton::router::http {
namespace {

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  absl::string_view host = text.substr(0, colon);
  int port = -1;
  bool good = colon != absl::string_view::npos && !host.empty() &&
              absl::SimpleAtoi(text.substr(colon + 1), &port) && port >= 0 &&
              port <= 65535;
  if (good && host.front() == '[') {
    good = host.size() > 2 && host.back() == ']';
    if (good) host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    good = false;  // An IPv6 address without brackets.
  }
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is no address to listen on: want \"host:port\" or "
                     "\"[IPv6]:port\""));
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

void SetOption(int fd, int level, int name, int value) {
  // An option that the kernel lacks is no reason not to serve.
  setsockopt(fd, level, name, &value, sizeof(value));
}

bool IsLoopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (address.ss_family == AF_INET6) {
    const in6_addr& in6 =
        reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&in6) ||
           (IN6_IS_ADDR_V4MAPPED(&in6) && in6.s6_addr[12] == IN_LOOPBACKNET);
  }
  return false;
}

// Listens on one address; errno says why it is not valid.
ScopedFd ListenOn(const addrinfo& info, int backlog) {
  ScopedFd fd(socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                     info.ai_protocol));
  if (!fd.valid()) return fd;
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (info.ai_family == AF_INET6) {
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (bind(fd.get(), info.ai_addr, info.ai_addrlen) != 0 ||
      listen(fd.get(), backlog) != 0) {
    const int error = errno;
    fd = ScopedFd();
    errno = error;
  }
  return fd;
}

}  // namespace

absl::StatusOr<ListenSocket> Listen(const std::string& address, int backlog) {
  BATON_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(
      where.host.c_str(), absl::StrCat(where.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve \"", address,
                                               "\": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found,
                                                             freeaddrinfo);
  std::vector<const addrinfo*> choices;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    choices.push_back(info);
  }
  std::stable_partition(
      choices.begin(), choices.end(),
      [](const addrinfo* info) { return info->ai_family == AF_INET; });
  for (const addrinfo* info : choices) {
    ListenSocket listening;
    listening.fd = ListenOn(*info, backlog);
    if (!listening.fd.valid()) continue;
    sockaddr_storage bound = {};
    socklen_t size = sizeof(bound);
    getsockname(listening.fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
    listening.address = AddressText(bound);
    listening.loopback = IsLoopback(bound);
    return listening;
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on \"", address,
                                             "\": ", std::strerror(errno)));
}

AcceptedSocket Accept(int listen_fd, absl::Duration silence) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  AcceptedSocket accepted;
  accepted.fd = ScopedFd(accept4(listen_fd, reinterpret_cast<sockaddr*>(&peer),
                                 &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.fd.valid()) return accepted;
  const int fd = accepted.fd.get();
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
            static_cast<int>(absl::ToInt64Milliseconds(silence)));
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  accepted.peer = AddressText(peer);
  return accepted;
}

std::string AddressText(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(in.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
    return absl::StrCat("[", text, "]:", ntohs(in6.sin6_port));
  }
  return "unknown";
}

}  // namespace baton::router::http
