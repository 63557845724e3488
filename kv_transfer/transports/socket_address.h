// "host:port" with a numeric host, to and from the operating system's form.
// Never resolves a name, so never blocks. Any thread.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace baton::kv_transfer {

// Before the address of a peer that moves payloads over NCCL alone.
inline constexpr char kNcclScheme[] = "nccl:";

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

// `host`: "127.0.0.1", "::1" or "[::1]". InvalidArgument names it otherwise.
absl::StatusOr<SocketAddress> MakeSocketAddress(const std::string& host,
                                                uint16_t port);

// "127.0.0.1:4000", "[::1]:4000". InvalidArgument names it otherwise, and says
// of one over NCCL that this is what it is.
absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& address);

// The port in `address`; 0 when it is of no known family.
uint16_t PortOf(const sockaddr_storage& address);

// The same host, another port.
SocketAddress WithPort(const SocketAddress& address, uint16_t port);

// Whether `address` is 0.0.0.0 or ::.
bool IsAnyAddress(const SocketAddress& address);

// The host that peers are told of one that listens on `listen_host`:
// `advertise_host`, or when that is empty `listen_host` itself.
// InvalidArgument names the one that is no numeric address, or that
// advertise_host is needed.
absl::StatusOr<std::string> AdvertisedHost(const std::string& listen_host,
                                           const std::string& advertise_host);

// "127.0.0.1:4000", "[::1]:4000".
std::string FormatHostPort(const std::string& host, uint16_t port);
std::string FormatSocketAddress(const sockaddr_storage& address);

}  // namespace baton::kv_transfer
