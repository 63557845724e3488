// TCP sockets as the kernel has them: where to listen, who connected. Any
// thread.
#pragma once

#include <string>

#include <sys/socket.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/scoped_fd.h"

namespace baton::router::http {

struct ListenSocket {
  ScopedFd fd;            // not blocking
  std::string address;    // "127.0.0.1:8000", with the port that was taken
  bool loopback = false;  // only this machine reaches it
};

// Listens on "host:port": a name, an IPv4 address, or an IPv6 one in brackets;
// port 0 takes a free one. A name is resolved now, and may block for it; of its
// addresses IPv4 ones come first, and one is taken. InvalidArgument or
// Unavailable, naming the address.
absl::StatusOr<ListenSocket> Listen(const std::string& address, int backlog);

struct AcceptedSocket {
  ScopedFd fd;       // not blocking
  std::string peer;  // "127.0.0.1:4711"
};

// Takes a connection that waits. Not blocking: the socket is not valid, and
// errno says why, when there is none. A peer that is silent about bytes sent
// for `silence`, or about probes, is taken for gone by the kernel.
AcceptedSocket Accept(int listen_fd, absl::Duration silence);

// "127.0.0.1:4711", "[::1]:4711".
std::string AddressText(const sockaddr_storage& address);

}  // namespace baton::router::http
