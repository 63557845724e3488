#include "tests/bench/router_benchmark_raw.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::bench {
namespace {

// As many as the router's workers are by default.
constexpr int kGroups = 20;
constexpr size_t kChunkBytes = 180;

// One event as the router writes it, but for what fills it up.
std::string MakeChunk() {
  constexpr char kStart[] = "ae\r\ndata: {\"choices\":[{\"text\":\"";
  constexpr char kEnd[] = "\"}]}\n\n\r\n";
  std::string chunk =
      absl::StrCat(kStart, std::string(kTokenTextBytes, 'x'), "\",\"id\":\"");
  chunk.append(kChunkBytes - chunk.size() - (sizeof(kEnd) - 1), 'x');
  chunk += kEnd;
  return chunk;
}

}  // namespace

// In the child.
class RawServer::Loop final {
 public:
  Loop(Control* control, TokenBoard* board)
      : control_(control),
        board_(board),
        chunk_(MakeChunk()),
        epoll_(epoll_create1(0)),
        timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)),
        listener_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    PCHECK(bind(listener_, reinterpret_cast<sockaddr*>(&at), size) == 0);
    PCHECK(listen(listener_, 4096) == 0);
    PCHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) ==
           0);
    Watch(listener_);
    Watch(timer_);
    control_->port = ntohs(at.sin_port);
  }

  [[noreturn]] void Run() {
    std::array<epoll_event, 256> events;
    int64_t due = NowNs();
    for (;;) {
      const double rate = control_->tokens_per_second;
      if (rate == 0) {
        Step();
      } else {
        due = std::max(due, NowNs() - 1'000'000'000);
        while (due <= NowNs()) {
          Step();
          due += static_cast<int64_t>(1e9 / rate / kGroups);
        }
        SetTimer(due);
      }
      const int n =
          epoll_wait(epoll_, events.data(), static_cast<int>(events.size()),
                     rate == 0 ? 0 : -1);
      for (int i = 0; i < n; ++i) {
        const int fd = events[i].data.fd;
        if (fd == listener_) {
          Accept();
        } else if (fd == timer_) {
          uint64_t ignored;
          if (read(timer_, &ignored, sizeof(ignored)) < 0) continue;
        } else {
          Read(fd);
        }
      }
    }
  }

 private:
  struct Stream {
    int fd = -1;
    int number = -1;
    uint32_t next = 0;
  };

  void Watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    PCHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0);
  }

  void SetTimer(int64_t ns) {
    itimerspec time{};
    time.it_value.tv_sec = ns / 1'000'000'000;
    time.it_value.tv_nsec = ns % 1'000'000'000;
    timerfd_settime(timer_, TFD_TIMER_ABSTIME, &time, nullptr);
  }

  void Accept() {
    for (;;) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK);
      if (fd < 0) return;
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      Watch(fd);
    }
  }

  // A request, which comes as a whole, or the end of a client.
  void Read(int fd) {
    const ssize_t n = recv(fd, buffer_.data(), buffer_.size(), 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      std::erase_if(streams_, [fd](const Stream& s) { return s.fd == fd; });
      close(fd);
      return;
    }
    const std::string request(buffer_.data(), static_cast<size_t>(n));
    constexpr char kId[] = "x-request-id: ";
    const size_t id = request.find(kId);
    CHECK(id != std::string::npos) << request;
    const size_t begin = id + sizeof(kId) - 1;
    const int number =
        StreamOfName(request.substr(begin, request.find('\r', id) - begin));
    constexpr char kHead[] =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    if (send(fd, kHead, sizeof(kHead) - 1, MSG_NOSIGNAL) > 0) {
      streams_.push_back({fd, number, 0});
    }
  }

  // A token for each stream of the next group.
  void Step() {
    const size_t group = turn_++ % kGroups;
    const int64_t now = NowNs();
    for (size_t i = group; i < streams_.size(); i += kGroups) {
      Stream& stream = streams_[i];
      // Noted first: the client may be quick.
      board_->Sent(stream.number, stream.next, now);
      if (send(stream.fd, chunk_.data(), chunk_.size(), MSG_NOSIGNAL) > 0) {
        ++stream.next;
      }
    }
  }

  Control* const control_;
  TokenBoard* const board_;
  const std::string chunk_;
  const int epoll_;
  const int timer_;
  const int listener_;
  std::array<char, 16384> buffer_;
  std::vector<Stream> streams_;
  size_t turn_ = 0;
};

RawServer::RawServer(TokenBoard* board)
    : control_(new (mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Control()) {
  pid_ = fork();
  PCHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    KeepToCpu(kRouterCpu);
    Loop(control_, board).Run();
  }
  while (control_->port == 0) {
    PCHECK(waitpid(pid_, nullptr, WNOHANG) == 0) << "the raw server ended";
    SleepSeconds(0.001);
  }
  address_ = absl::StrCat("127.0.0.1:", control_->port.load());
}

RawServer::~RawServer() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  munmap(control_, sizeof(Control));
}

}  // namespace baton::bench
