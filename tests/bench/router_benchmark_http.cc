// The HTTP clients of router_benchmark.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "common/scoped_fd.h"
#include "tests/bench/router_benchmark_clients.h"
#include "tests/bench/router_benchmark_router.h"

namespace baton::bench {
namespace {

class HttpClients final : public StreamClients {
 public:
  HttpClients(const Options& options, TokenBoard* board, Window* window)
      : options_(options),
        prompt_(MakePrompt(options.prompt_tokens)),
        board_(board),
        window_(window),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        streams_(TokenBoard::kMaxStreams) {
    PCHECK(epoll_.valid() && wake_.valid());
    Watch(wake_.get(), kWake);
    thread_ = std::thread([this] { Run(); });
  }

  ~HttpClients() override {
    stop_ = true;
    Wake();
    thread_.join();
    for (const Stream& stream : streams_) {
      if (stream.fd >= 0) close(stream.fd);
    }
  }

  void Leave(int stream) override {
    {
      absl::MutexLock lock(&mu_);
      leaving_.push_back(stream);
    }
    Wake();
  }

  int NumBegun() const override { return num_begun_; }
  int NumEnded() const override { return num_ended_; }
  std::string FirstError() const override {
    absl::MutexLock lock(&mu_);
    return first_error_;
  }

 private:
  static constexpr uint32_t kWake = ~uint32_t{0};

  // The thread's own, once it is watched.
  struct Stream {
    int fd = -1;
    uint32_t next = 0;
    // The end of what came last, up to a line's end.
    std::string partial;
  };

  void Begin(int number) override {
    Stream& stream = streams_[number];
    CHECK_LT(stream.fd, 0);
    board_->Forget(number);
    stream.next = 0;
    stream.fd = ConnectTo(options_.address);
    SendAll(stream.fd, CompletionRequest(number, prompt_, options_.max_tokens,
                                         /*streamed=*/true));
    fcntl(stream.fd, F_SETFL, O_NONBLOCK);
    Watch(stream.fd, static_cast<uint32_t>(number));
  }

  void Watch(int fd, uint32_t data) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = data;
    PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  }

  void Wake() {
    const uint64_t one = 1;
    PCHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  }

  void Run() {
    std::array<epoll_event, 512> events;
    while (!stop_) {
      const int n = epoll_wait(epoll_.get(), events.data(),
                               static_cast<int>(events.size()), -1);
      for (int i = 0; i < n; ++i) {
        if (events[i].data.u32 == kWake) {
          LeaveThose();
        } else {
          Receive(static_cast<int>(events[i].data.u32));
        }
      }
    }
  }

  void LeaveThose() {
    uint64_t count;
    if (read(wake_.get(), &count, sizeof(count)) < 0) return;
    std::vector<int> leaving;
    {
      absl::MutexLock lock(&mu_);
      leaving.swap(leaving_);
    }
    for (const int number : leaving) {
      Stream& stream = streams_[number];
      if (stream.fd < 0) continue;
      // As close() does when nobody asked for less.
      const linger usual = {0, 0};
      setsockopt(stream.fd, SOL_SOCKET, SO_LINGER, &usual, sizeof(usual));
      board_->Left(number, NowNs());
      close(std::exchange(stream.fd, -1));
    }
  }

  void Receive(int number) {
    Stream& stream = streams_[number];
    if (stream.fd < 0) return;
    const ssize_t n = recv(stream.fd, buffer_.data(), buffer_.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return End(number, n == 0 ? "closed" : strerror(errno));
    const int64_t now = NowNs();
    window_->TakeBytes(n);
    absl::string_view text(buffer_.data(), static_cast<size_t>(n));
    if (stream.next == 0 && absl::StartsWith(text, "HTTP/") &&
        !absl::StartsWith(text, "HTTP/1.1 200")) {
      return End(number, std::string(text.substr(0, 1000)));
    }
    if (!stream.partial.empty()) {
      stream.partial.append(text.data(), text.size());
      text = stream.partial;
    }
    const size_t end = text.rfind('\n') + 1;  // npos + 1 is 0
    const int tokens = CountTokens(text.substr(0, end));
    std::string rest(text.substr(end));
    stream.partial.swap(rest);
    if (tokens == 0) return;
    if (stream.next == 0) ++num_begun_;
    window_->Take(number, stream.next, tokens, now);
    stream.next += static_cast<uint32_t>(tokens);
  }

  // In whole lines of events.
  static int CountTokens(absl::string_view lines) {
    constexpr absl::string_view kText = "\"text\":\"";
    size_t bytes = 0;
    const char* at = lines.data();
    const char* const end = lines.data() + lines.size();
    for (;;) {
      at = static_cast<const char*>(
          memmem(at, end - at, kText.data(), kText.size()));
      if (at == nullptr) break;
      at += kText.size();
      const char* const quote =
          static_cast<const char*>(memchr(at, '"', end - at));
      if (quote == nullptr) break;
      bytes += quote - at;
      at = quote;
    }
    return static_cast<int>(bytes / kTokenTextBytes);
  }

  void End(int number, const std::string& error) {
    close(std::exchange(streams_[number].fd, -1));
    ++num_ended_;
    absl::MutexLock lock(&mu_);
    if (first_error_.empty()) {
      first_error_ = absl::StrCat("stream ", number, " after ",
                                  streams_[number].next, " tokens: ", error);
    }
  }

  const Options options_;
  const std::vector<uint32_t> prompt_;
  TokenBoard* const board_;
  Window* const window_;
  const ScopedFd epoll_;
  const ScopedFd wake_;
  std::vector<Stream> streams_;
  std::array<char, 1 << 16> buffer_;

  std::atomic<bool> stop_{false};
  std::atomic<int> num_begun_{0}, num_ended_{0};
  mutable absl::Mutex mu_;
  std::vector<int> leaving_ ABSL_GUARDED_BY(mu_);
  std::string first_error_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace

std::unique_ptr<StreamClients> MakeHttpClients(
    const StreamClients::Options& options, TokenBoard* board, Window* window) {
  return std::make_unique<HttpClients>(options, board, window);
}

}  // namespace baton::bench
