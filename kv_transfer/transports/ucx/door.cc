#include "kv_transfer/transports/ucx/door.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/tcp_socket.h"

namespace baton::kv_transfer {
namespace {

constexpr char kWords[] = "baton kv door 1\n";
constexpr size_t kWordsBytes = sizeof(kWords) - 1;
constexpr size_t kAnswerBytes = kWordsBytes + 2;
// More than max_peers that connect at once; a flood beyond it pushes out the
// oldest.
constexpr size_t kMaxVisitors = 256;
constexpr absl::Duration kVisitorTimeout = absl::Seconds(2);

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
  BATON_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(address));
  return Door(std::move(listener.socket), listener.port);
}

void Door::AddPollFds(std::vector<pollfd>* fds) const {
  if (socket_.valid()) fds->push_back({socket_.get(), POLLIN, 0});
  for (const Visitor& visitor : visitors_) {
    fds->push_back({visitor.socket.get(), POLLIN, 0});
  }
}

void Door::Admit(ScopedFd socket, std::string said, absl::Time now) {
  if (visitors_.size() >= kMaxVisitors) visitors_.pop_front();
  visitors_.push_back(
      {std::move(socket), std::move(said), now + kVisitorTimeout});
}

void Door::Serve(absl::Time now, absl::FunctionRef<uint16_t()> let_in) {
  while (socket_.valid()) {
    ScopedFd accepted(
        accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted.valid()) break;
    Admit(std::move(accepted), "", now);
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
  BATON_ASSIGN_OR_RETURN(ScopedFd socket, BeginConnectTcp(address));
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
    BATON_RETURN_IF_ERROR(ConnectResult(socket_.get()));
    if (!WriteAll(socket_.get(), kWords)) {
      return absl::UnavailableError("the peer hung up");
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
