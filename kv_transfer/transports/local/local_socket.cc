#include "kv_transfer/transports/local/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transports/socket_error.h"

namespace baton::kv_transfer {
namespace {

constexpr size_t kMaxDescriptors = RegionTable::kMaxRegions;
constexpr size_t kControlBytes = CMSG_SPACE(kMaxDescriptors * sizeof(int));

struct LocalName {
  sockaddr_un storage{};
  socklen_t length = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

absl::Status HungUp() { return absl::UnavailableError("the peer hung up"); }

absl::Status TooLong() {
  return absl::InvalidArgumentError(
      "the peer sent a datagram longer than any may be");
}

// A name that begins with a zero byte is no file (an "abstract" name).
LocalName NameOf(const std::string& address) {
  const std::string text = absl::StrCat("baton-kv/", address);
  LocalName name;
  name.storage.sun_family = AF_UNIX;
  CHECK_LT(text.size(), sizeof(name.storage.sun_path));  // address is numeric
  std::memcpy(name.storage.sun_path + 1, text.data(), text.size());
  name.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

absl::StatusOr<ScopedFd> MakeSocket() {
  ScopedFd out(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!out.valid()) {
    return SocketError(absl::StatusCode::kResourceExhausted, "socket", errno);
  }
  return out;
}

}  // namespace

absl::StatusOr<ScopedFd> ListenLocally(const std::string& address) {
  BATON_ASSIGN_OR_RETURN(ScopedFd out, MakeSocket());
  const LocalName name = NameOf(address);
  if (bind(out.get(), name.get(), name.length) != 0 ||
      listen(out.get(), 128) != 0) {
    const int error = errno;
    return SocketError(
        error == EADDRINUSE ? absl::StatusCode::kAlreadyExists
                            : absl::StatusCode::kFailedPrecondition,
        absl::StrCat("listening on this host for ", address), error);
  }
  return out;
}

absl::StatusOr<ScopedFd> ConnectLocally(const std::string& address) {
  BATON_ASSIGN_OR_RETURN(ScopedFd out, MakeSocket());
  const LocalName name = NameOf(address);
  if (connect(out.get(), name.get(), name.length) != 0) {
    const int error = errno;
    if (error == ECONNREFUSED) {
      return absl::UnavailableError("nobody listens for it on this host");
    }
    return SocketError(absl::StatusCode::kUnavailable, "connect", error);
  }
  BATON_RETURN_IF_ERROR(CheckedPeerProcess(out.get()).status());
  return out;
}

absl::StatusOr<pid_t> CheckedPeerProcess(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return SocketError(absl::StatusCode::kUnavailable, "SO_PEERCRED", errno);
  }
  if (peer.uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("it is the socket of another user (", peer.uid, ")"));
  }
  return peer.pid;
}

absl::StatusOr<bool> SendDatagram(int socket, absl::string_view datagram,
                                  absl::Span<const int> descriptors) {
  CHECK_LE(descriptors.size(), kMaxDescriptors);
  iovec part = {const_cast<char*>(datagram.data()), datagram.size()};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t bytes = descriptors.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(rights), descriptors.data(), bytes);
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
      return true;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    return SocketError(absl::StatusCode::kUnavailable, "send", errno);
  }
}

absl::StatusOr<std::optional<size_t>> ReceiveDatagram(
    int socket, absl::Span<std::byte> buffer,
    std::vector<ScopedFd>* descriptors) {
  iovec part = {buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  ssize_t n;
  do {
    n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    return SocketError(absl::StatusCode::kUnavailable, "receive", errno);
  }
  if (descriptors != nullptr) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
         c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int file = -1;
        std::memcpy(&file, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        descriptors->emplace_back(file);
      }
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      return absl::InvalidArgumentError("the peer sent too many descriptors");
    }
  }
  if (n == 0) return HungUp();
  if ((message.msg_flags & MSG_TRUNC) != 0) return TooLong();
  return static_cast<size_t>(n);
}

absl::StatusOr<size_t> ReceiveDatagrams(int socket,
                                        absl::Span<std::byte> buffer,
                                        absl::Span<size_t> sizes) {
  constexpr size_t kMost = 64;
  CHECK_GT(sizes.size(), 0u);
  CHECK_LE(sizes.size(), kMost);
  const size_t room = buffer.size() / sizes.size();
  iovec parts[kMost];
  mmsghdr messages[kMost] = {};
  for (size_t i = 0; i < sizes.size(); ++i) {
    parts[i] = {buffer.data() + i * room, room};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  int n;
  do {
    n = recvmmsg(socket, messages, static_cast<unsigned>(sizes.size()),
                 MSG_DONTWAIT, nullptr);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    return SocketError(absl::StatusCode::kUnavailable, "receive", errno);
  }
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    if ((messages[i].msg_hdr.msg_flags & MSG_TRUNC) != 0) return TooLong();
    sizes[i] = messages[i].msg_len;
    if (sizes[i] > 0) continue;
    // No datagram is empty: it is the end, which the next call finds, too.
    for (size_t after = i + 1; after < static_cast<size_t>(n); ++after) {
      if (messages[after].msg_len > 0) {
        return absl::InvalidArgumentError("the peer sent an empty datagram");
      }
    }
    if (i == 0) return HungUp();
    return i;
  }
  return static_cast<size_t>(n);
}

}  // namespace baton::kv_transfer
