#include "kv_transfer/transports/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace baton::kv_transfer {

absl::StatusOr<SocketAddress> MakeSocketAddress(const std::string& host,
                                                uint16_t port) {
  absl::string_view bare = host;
  if (absl::ConsumePrefix(&bare, "[") && !absl::ConsumeSuffix(&bare, "]")) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed host '", host, "'"));
  }
  const std::string text(bare);
  SocketAddress out;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    out.length = sizeof(*v4);
    return out;
  }
  if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    out.length = sizeof(*v6);
    return out;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("host '", host, "' is not a numeric address"));
}

absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& address) {
  if (absl::StartsWith(address, kNcclScheme)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer at ", address, " speaks nccl alone"));
  }
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port == 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "' is not host:port"));
  }
  return MakeSocketAddress(address.substr(0, colon),
                           static_cast<uint16_t>(port));
}

uint16_t PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

SocketAddress WithPort(const SocketAddress& address, uint16_t port) {
  SocketAddress out = address;
  if (out.storage.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(out.storage).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(out.storage).sin6_port = htons(port);
  }
  return out;
}

bool IsAnyAddress(const SocketAddress& address) {
  const sockaddr_storage& s = address.storage;
  if (s.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(s).sin_addr.s_addr == 0;
  }
  return IN6_IS_ADDR_UNSPECIFIED(
      &reinterpret_cast<const sockaddr_in6&>(s).sin6_addr);
}

absl::StatusOr<std::string> AdvertisedHost(const std::string& listen_host,
                                           const std::string& advertise_host) {
  BATON_ASSIGN_OR_RETURN(const SocketAddress listen,
                         MakeSocketAddress(listen_host, 1));
  if (!advertise_host.empty()) {
    BATON_RETURN_IF_ERROR(MakeSocketAddress(advertise_host, 1).status());
    return advertise_host;
  }
  if (IsAnyAddress(listen)) {
    return absl::InvalidArgumentError(
        absl::StrCat("advertise_host: needed, because listen_host ",
                     listen_host, " names no one address"));
  }
  return listen_host;
}

std::string FormatHostPort(const std::string& host, uint16_t port) {
  const bool needs_brackets =
      host.find(':') != std::string::npos && host.front() != '[';
  return needs_brackets ? absl::StrCat("[", host, "]:", port)
                        : absl::StrCat(host, ":", port);
}

std::string FormatSocketAddress(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr,
              text, sizeof(text));
  } else if (address.ss_family == AF_INET6) {
    inet_ntop(AF_INET6,
              &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text,
              sizeof(text));
  }
  return FormatHostPort(text, PortOf(address));
}

}  // namespace baton::kv_transfer
