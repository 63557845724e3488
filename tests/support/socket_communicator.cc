// What goes over the connection, as 64-bit integers of this host:
//   1. once, both ways: kHello
//   2. for each group, both ways: kGroup, whether this rank sends, how many
//      pieces
//   3. when these agree, both ways: the size of each piece
//   4. when these agree, from the sender: the bytes
// Both ranks compare before they go on, so that both see what differs. Rank 0
// writes first and rank 1 reads first, so that never do both wait in a write.
#include "tests/support/socket_communicator.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/log.h"
#include "common/scoped_fd.h"
#include "common/status_macros.h"

namespace baton::kv_transfer {
namespace {

constexpr uint64_t kHello = 0x6f6c6c65482d4d43;
constexpr uint64_t kGroup = 0x70756f72472d4d43;

// The first byte of an abstract name is 0.
constexpr size_t kMaxNameBytes = sizeof(sockaddr_un::sun_path) - 1;
static_assert(kMaxNameBytes <= kMaxUniqueIdBytes);

struct AbstractAddress {
  // REQUIRES: at most kMaxNameBytes.
  explicit AbstractAddress(absl::string_view name)
      : size(offsetof(sockaddr_un, sun_path) + 1 + name.size()) {
    unix_domain.sun_family = AF_UNIX;
    std::memcpy(unix_domain.sun_path + 1, name.data(), name.size());
  }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&unix_domain);
  }

  sockaddr_un unix_domain{};
  socklen_t size;
};

std::string MakeName() {
  std::random_device random;
  const uint64_t high = random();
  return absl::StrCat("baton-socket-communicator-", getpid(), "-",
                      absl::Hex(high << 32 | random(), absl::kZeroPad16));
}

ScopedFd OpenSocket() {
  return ScopedFd(
      socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status OtherRankEnded() {
  return absl::UnavailableError("the other rank ended the connection");
}

bool IsToTryAgain(int error) { return error == EAGAIN || error == EINTR; }

class SocketCommunicator final : public Communicator {
 public:
  SocketCommunicator(int rank, std::string unique_id,
                     std::function<void()> on_news,
                     std::function<void(int)> waits)
      : rank_(rank),
        on_news_(std::move(on_news)),
        waits_(std::move(waits)),
        unique_id_(std::move(unique_id)),
        wake_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CHECK(rank_ == 0 || rank_ == 1);
    PCHECK(wake_event_.valid());
    thread_ = std::thread([this] { Run(); });
  }
  ~SocketCommunicator() override {
    {
      absl::MutexLock lock(&mu_);
      CHECK(said_quiet_) << "a communicator is destroyed before it is quiet";
    }
    thread_.join();
  }

  void Post(PostedGroup group) override {
    CHECK(!group.pieces.empty());
    for (absl::Span<std::byte> piece : group.pieces) CHECK(!piece.empty());
    {
      absl::MutexLock lock(&mu_);
      if (abort_) return;
      posted_.push_back(std::move(group));
      ++waiting_;
      Wake();
    }
    TellWaits(1);
  }

  CommunicatorNews Poll() override {
    absl::MutexLock lock(&mu_);
    said_quiet_ = said_quiet_ || news_.quiet;
    return std::exchange(news_, {});
  }

  void Abort() override {
    absl::MutexLock lock(&mu_);
    abort_ = true;
    posted_.clear();
    Wake();
  }

 private:
  void TellWaits(int change) {
    if (waits_ && change != 0) waits_(change);
  }
  void Wake() { PCHECK(eventfd_write(wake_event_.get(), 1) == 0); }

  // All below: the thread. What waits is Cancelled by Abort.
  void Run();
  absl::Status Join();
  absl::Status Listen();
  absl::Status Connect();
  absl::Status Serve();
  // The next that is posted; waits for it.
  absl::StatusOr<PostedGroup> TakePosted();
  // OK: the other rank posted its counterpart.
  absl::Status Compare(const PostedGroup& group);
  // Tells the other rank these, and returns as many that it told.
  absl::StatusOr<std::vector<uint64_t>> Exchange(std::vector<uint64_t> ours);
  absl::Status MoveBytes(bool is_send, absl::Span<std::byte> bytes);
  // Waits for one of these events and returns what there is; it may be none.
  absl::StatusOr<int> AwaitEvent(const ScopedFd& fd, int events);

  // Changes the news and says so, unless it is aborted.
  template <typename Change>
  void Tell(Change change) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (abort_) return;
    change(news_);
    on_news_();
  }

  const int rank_;
  const std::function<void()> on_news_;
  const std::function<void(int)> waits_;
  const std::string unique_id_;  // of rank 1
  const ScopedFd wake_event_;    // Post, Abort

  ScopedFd socket_;  // the thread

  absl::Mutex mu_;
  std::deque<PostedGroup> posted_ ABSL_GUARDED_BY(mu_);
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;  // posted and not done
  bool abort_ ABSL_GUARDED_BY(mu_) = false;
  CommunicatorNews news_ ABSL_GUARDED_BY(mu_);
  bool said_quiet_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // last: it uses all of the above
};

void SocketCommunicator::Run() {
  absl::Status status = Join();
  if (status.ok()) {
    Tell([](CommunicatorNews& news) { news.ready = true; });
    status = Serve();
  }
  CHECK(!status.ok());
  Tell([&](CommunicatorNews& news) { news.failure = status; });
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&abort_));
  }
  socket_ = ScopedFd();  // the other rank sees it before we are quiet
  int never_done = 0;
  {
    absl::MutexLock lock(&mu_);
    never_done = std::exchange(waiting_, 0);
  }
  TellWaits(-never_done);
  absl::MutexLock lock(&mu_);
  news_.quiet = true;
  on_news_();
}

absl::Status SocketCommunicator::Join() {
  BATON_RETURN_IF_ERROR(rank_ == 0 ? Listen() : Connect());
  BATON_ASSIGN_OR_RETURN(const std::vector<uint64_t> theirs,
                         Exchange({kHello}));
  if (theirs[0] == kHello) return absl::OkStatus();
  return absl::InternalError("who joined is not the other rank");
}

absl::Status SocketCommunicator::Listen() {
  const std::string name = MakeName();
  CHECK_LE(name.size(), kMaxNameBytes);
  const AbstractAddress address(name);
  const ScopedFd listener = OpenSocket();
  if (!listener.valid() ||
      bind(listener.get(), address.get(), address.size) != 0 ||
      listen(listener.get(), /*backlog=*/1) != 0) {
    return SystemError("listening for the other rank");
  }
  Tell([&](CommunicatorNews& news) { news.unique_id = name; });
  for (;;) {
    BATON_RETURN_IF_ERROR(AwaitEvent(listener, POLLIN).status());
    socket_ = ScopedFd(accept4(listener.get(), nullptr, nullptr,
                               SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket_.valid()) return absl::OkStatus();
    if (!IsToTryAgain(errno)) return SystemError("accepting the other rank");
  }
}

absl::Status SocketCommunicator::Connect() {
  if (unique_id_.empty() || unique_id_.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unique id has ", unique_id_.size(), " bytes"));
  }
  const AbstractAddress address(unique_id_);
  socket_ = OpenSocket();
  // Never in progress: rank 0 listens, and nobody else is in its backlog.
  if (!socket_.valid() ||
      connect(socket_.get(), address.get(), address.size) != 0) {
    return SystemError("connecting to the other rank");
  }
  return absl::OkStatus();
}

absl::Status SocketCommunicator::Serve() {
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const PostedGroup group, TakePosted());
    BATON_RETURN_IF_ERROR(Compare(group));
    for (absl::Span<std::byte> piece : group.pieces) {
      BATON_RETURN_IF_ERROR(MoveBytes(group.is_send, piece));
    }
    {
      absl::MutexLock lock(&mu_);
      --waiting_;
    }
    TellWaits(-1);
    Tell([&](CommunicatorNews& news) { news.done.push_back(group.ticket); });
  }
}

absl::StatusOr<PostedGroup> SocketCommunicator::TakePosted() {
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      if (!posted_.empty()) {
        PostedGroup group = std::move(posted_.front());
        posted_.pop_front();
        return group;
      }
    }
    BATON_ASSIGN_OR_RETURN(const int events, AwaitEvent(socket_, POLLRDHUP));
    if (events != 0) return OtherRankEnded();
  }
}

absl::Status SocketCommunicator::Compare(const PostedGroup& group) {
  const char* const does = group.is_send ? "sends " : "receives ";
  const size_t count = group.pieces.size();
  BATON_ASSIGN_OR_RETURN(const std::vector<uint64_t> header,
                         Exchange({kGroup, group.is_send, count}));
  if (header[0] != kGroup) {
    return absl::InternalError("what the other rank wrote is not a group");
  }
  if (header[1] == uint64_t{group.is_send}) {
    return absl::InternalError(
        absl::StrCat("both ranks ", group.is_send ? "send" : "receive"));
  }
  if (header[2] != count) {
    return absl::InternalError(absl::StrCat("rank ", rank_, " ", does, count,
                                            " pieces, the other has ",
                                            header[2]));
  }
  std::vector<uint64_t> sizes;
  for (absl::Span<std::byte> piece : group.pieces) {
    sizes.push_back(piece.size());
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<uint64_t> theirs, Exchange(sizes));
  for (size_t i = 0; i < count; ++i) {
    if (sizes[i] == theirs[i]) continue;
    return absl::InternalError(
        absl::StrCat("piece ", i, " of ", count, ": rank ", rank_, " ", does,
                     sizes[i], " bytes, the other has ", theirs[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> SocketCommunicator::Exchange(
    std::vector<uint64_t> ours) {
  std::vector<uint64_t> theirs(ours.size());
  for (const bool is_send : {rank_ == 0, rank_ != 0}) {
    std::vector<uint64_t>& numbers = is_send ? ours : theirs;
    BATON_RETURN_IF_ERROR(MoveBytes(
        is_send, absl::MakeSpan(reinterpret_cast<std::byte*>(numbers.data()),
                                numbers.size() * sizeof(uint64_t))));
  }
  return theirs;
}

absl::Status SocketCommunicator::MoveBytes(bool is_send,
                                           absl::Span<std::byte> bytes) {
  const int event = is_send ? POLLOUT : POLLIN;
  while (!bytes.empty()) {
    BATON_RETURN_IF_ERROR(AwaitEvent(socket_, event).status());
    const ssize_t n =
        is_send ? send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL)
                : recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (n == 0) return OtherRankEnded();
    if (n > 0) {
      bytes.remove_prefix(n);
    } else if (!IsToTryAgain(errno)) {
      return SystemError(is_send ? "writing to the other rank"
                                 : "reading from the other rank");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> SocketCommunicator::AwaitEvent(const ScopedFd& fd,
                                                   int events) {
  pollfd polled[] = {{wake_event_.get(), POLLIN, 0},
                     {fd.get(), static_cast<int16_t>(events), 0}};
  PCHECK(poll(polled, /*nfds=*/2, /*timeout=*/-1) >= 0 || errno == EINTR);
  eventfd_t wakes = 0;
  if (polled[0].revents != 0) eventfd_read(wake_event_.get(), &wakes);
  absl::MutexLock lock(&mu_);
  if (abort_) return absl::CancelledError("aborted");
  return polled[1].revents;
}

class SocketCommunicators final : public Communicators {
 public:
  explicit SocketCommunicators(std::function<void(int)> waits)
      : waits_(std::move(waits)) {}

  std::unique_ptr<Communicator> Create(int rank, const std::string& unique_id,
                                       std::function<void()> on_news) override {
    return std::make_unique<SocketCommunicator>(rank, unique_id,
                                                std::move(on_news), waits_);
  }

 private:
  const std::function<void(int)> waits_;
};

}  // namespace

std::unique_ptr<Communicators> CreateSocketCommunicators(
    std::function<void(int change)> waits) {
  return std::make_unique<SocketCommunicators>(std::move(waits));
}

}  // namespace baton::kv_transfer
