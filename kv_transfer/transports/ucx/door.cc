#include "kv_transfer/transports/ucx/door.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::kv_transfer {
namespace {

constexpr char kWords[] = "baton kv door 1\n";
constexpr size_t kWordsBytes = sizeof(kWords) - 1;
constexpr size_t kAnswerBytes = kWordsBytes + 2;
// More than max_peers that connect at once; a flood beyond it pushes out the
// oldest.
constexpr size_t kMaxVisitors = 256;
constexpr absl::Duration kVisitorTimeout = absl::Seconds(2);

absl::Status SocketError(absl::StatusCode code, const std::string& what,
                         int error) {
  return absl::Status(code, absl::StrCat(what, ": ", std::strerror(error)));
}

// Reads what is there, at most up to `limit` bytes in all. False at the end of
// the stream or on an error.
bool ReadSome(int fd, size_t limit, std::string* into) {
  char buffer[64];
  while (into->size() < limit) {
    const size_t want = std::min(sizeof(buffer), limit - into->size());
    const ssize_t n = recv(fd, buffer, want, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    into->append(buffer, static_cast<size_t>(n));
  }
  return true;
}

// A few bytes into an empty socket buffer: all or an error.
bool WriteAll(int fd, const std::string& bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

absl::StatusOr<Door> Door::Open(const SocketAddress& address) {
  const std::string what =
      absl::StrCat("listening on ", FormatSocketAddress(address.storage));
  ScopedFd socket(::socket(address.storage.ss_family,
                           SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return SocketError(absl::StatusCode::kInternal, what, errno);
  }
  // A worker that restarts gets its port back at once.
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), address.get(), address.length) != 0 ||
      listen(socket.get(), 128) != 0) {
    const int error = errno;
    return SocketError(error == EADDRINUSE
                           ? absl::StatusCode::kAlreadyExists
                           : absl::StatusCode::kFailedPrecondition,
                       what, error);
  }
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage),
                  &bound.length) != 0) {
    return SocketError(absl::StatusCode::kInternal, what, errno);
  }
  return Door(std::move(socket), PortOf(bound.storage));
}

void Door::AddPollFds(std::vector<pollfd>* fds) const {
  fds->push_back({socket_.get(), POLLIN, 0});
  for (const Visitor& visitor : visitors_) {
    fds->push_back({visitor.socket.get(), POLLIN, 0});
  }
}

void Door::Serve(absl::Time now, absl::FunctionRef<uint16_t()> let_in) {
  for (;;) {
    ScopedFd accepted(
        accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted.valid()) break;
    if (visitors_.size() >= kMaxVisitors) visitors_.pop_front();
    visitors_.push_back({std::move(accepted), "", now + kVisitorTimeout});
  }
  for (auto it = visitors_.begin(); it != visitors_.end();) {
    const bool stays = now < it->deadline && ServeVisitor(*it, let_in);
    it = stays ? it + 1 : visitors_.erase(it);
  }
}

bool Door::ServeVisitor(Visitor& visitor,
                        absl::FunctionRef<uint16_t()> let_in) {
  const bool open = ReadSome(visitor.socket.get(), kWordsBytes, &visitor.said);
  if (!absl::StartsWith(kWords, visitor.said)) return false;
  if (visitor.said.size() < kWordsBytes) return open;
  const uint16_t port = let_in();
  std::string answer(kWords);
  answer.push_back(static_cast<char>(port & 0xff));
  answer.push_back(static_cast<char>(port >> 8));
  WriteAll(visitor.socket.get(), answer);
  return false;  // told; an orderly close delivers it
}

absl::StatusOr<Knock> Knock::Begin(const SocketAddress& address) {
  ScopedFd socket(::socket(address.storage.ss_family,
                           SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return SocketError(absl::StatusCode::kResourceExhausted, "socket", errno);
  }
  if (connect(socket.get(), address.get(), address.length) != 0 &&
      errno != EINPROGRESS) {
    return SocketError(absl::StatusCode::kUnavailable, "connect", errno);
  }
  return Knock(std::move(socket));
}

pollfd Knock::PollFd() const {
  const short events = asked_ ? POLLIN : POLLOUT;
  return {socket_.get(), events, 0};
}

absl::StatusOr<std::optional<uint16_t>> Knock::Serve() {
  if (!asked_) {
    pollfd fd = PollFd();
    if (poll(&fd, 1, 0) <= 0) return std::nullopt;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      return SocketError(absl::StatusCode::kUnavailable, "connect", error);
    }
    if (!WriteAll(socket_.get(), kWords)) {
      return SocketError(absl::StatusCode::kUnavailable, "connect", errno);
    }
    asked_ = true;
  }
  const bool open = ReadSome(socket_.get(), kAnswerBytes, &answer_);
  if (answer_.substr(0, kWordsBytes) !=
      absl::string_view(kWords, std::min(kWordsBytes, answer_.size()))) {
    return absl::InvalidArgumentError("the peer is no transport of Baton");
  }
  if (answer_.size() < kAnswerBytes) {
    if (!open) return absl::UnavailableError("the peer hung up");
    return std::nullopt;
  }
  const auto byte = [&](size_t i) {
    return static_cast<uint8_t>(answer_[kWordsBytes + i]);
  };
  const uint16_t port = static_cast<uint16_t>(byte(0) | byte(1) << 8);
  if (port == 0) {
    return absl::ResourceExhaustedError("the peer takes no more connections");
  }
  return port;
}

}  // namespace baton::kv_transfer
