#include "kv_transfer/transports/tcp_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kv_transfer/transports/socket_error.h"

namespace baton::kv_transfer {
namespace {

ScopedFd OpenTcp(const SocketAddress& address) {
  return ScopedFd(::socket(address.storage.ss_family,
                           SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace

absl::StatusOr<TcpListener> ListenTcp(const SocketAddress& address) {
  const std::string what =
      absl::StrCat("listening on ", FormatSocketAddress(address.storage));
  TcpListener listener;
  listener.socket = OpenTcp(address);
  const int socket = listener.socket.get();
  if (!listener.socket.valid()) {
    return SocketError(absl::StatusCode::kInternal, what, errno);
  }
  // A worker that restarts gets its port back at once.
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket, address.get(), address.length) != 0 ||
      listen(socket, 128) != 0) {
    const int error = errno;
    return SocketError(error == EADDRINUSE
                           ? absl::StatusCode::kAlreadyExists
                           : absl::StatusCode::kFailedPrecondition,
                       what, error);
  }
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&bound.storage),
                  &bound.length) != 0) {
    return SocketError(absl::StatusCode::kInternal, what, errno);
  }
  listener.port = PortOf(bound.storage);
  return listener;
}

absl::StatusOr<ScopedFd> BeginConnectTcp(const SocketAddress& address) {
  ScopedFd socket = OpenTcp(address);
  if (!socket.valid()) {
    return SocketError(absl::StatusCode::kResourceExhausted, "socket", errno);
  }
  if (connect(socket.get(), address.get(), address.length) != 0 &&
      errno != EINPROGRESS) {
    return SocketError(absl::StatusCode::kUnavailable, "connect", errno);
  }
  return socket;
}

absl::Status ConnectResult(int socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
    error = errno;
  }
  if (error == 0) return absl::OkStatus();
  return SocketError(absl::StatusCode::kUnavailable, "connect", error);
}

absl::StatusOr<uint64_t> SentBytes(ssize_t result) {
  if (result >= 0) return static_cast<uint64_t>(result);
  if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK) return 0;
  return SocketError(absl::StatusCode::kUnavailable, "the connection broke",
                     errno);
}

absl::StatusOr<uint64_t> ReceivedBytes(ssize_t result) {
  if (result == 0) return absl::UnavailableError("the peer hung up");
  return SentBytes(result);
}

}  // namespace baton::kv_transfer
