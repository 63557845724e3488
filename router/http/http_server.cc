#include "router/http/http_server.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/tls/tls_context.h"
#include "router/http/answer_text.h"
#include "router/http/io_thread.h"
#include "router/http/listen_socket.h"
#include "router/http/tls_context.h"

namespace baton::router::http {
namespace {

constexpr int kBacklog = 4096;
// Of the process, besides the connections.
constexpr int64_t kOtherFiles = 1024;
// Taken before the io thread does something else.
constexpr int kAcceptsPerTurn = 64;
// When the process or the kernel has no descriptor or memory left.
constexpr absl::Duration kAcceptRetry = absl::Milliseconds(100);

absl::Status CheckOptions(const HttpServer::Options& options) {
  const auto bad = [](absl::string_view name, absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("HTTP server: ", name, " must be ", what));
  };
  if (options.threads < 1 || options.threads > HttpServer::kMaxThreads) {
    return bad("threads", absl::StrCat("from 1 to ", HttpServer::kMaxThreads));
  }
  if (options.max_connections < 1) return bad("max_connections", "positive");
  if (options.max_header_bytes < 256) {
    return bad("max_header_bytes", "256 or more");
  }
  if (options.max_pending_bytes < 1)
    return bad("max_pending_bytes", "positive");
  const std::pair<const char*, absl::Duration> deadlines[] = {
      {"header_deadline", options.header_deadline},
      {"body_deadline", options.body_deadline},
      {"idle_deadline", options.idle_deadline},
      {"write_deadline", options.write_deadline}};
  for (const auto& [name, deadline] : deadlines) {
    if (deadline <= absl::ZeroDuration() || deadline > absl::Hours(24)) {
      return bad(name, "positive, and a day at most");
    }
  }
  return absl::OkStatus();
}

// Each connection is a file: makes the process's limit of open files large
// enough, as far as it may.
void RaiseFileLimit(int64_t connections) {
  const auto wanted = static_cast<rlim_t>(connections + kOtherFiles);
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
    LOG(WARNING) << "HTTP: this process may open " << limit.rlim_cur
                 << " files, which is too few for the " << connections
                 << " connections that it would take (ulimit -n)";
  }
}

}  // namespace

// Takes connections and deals them out. On the first io thread.
class Acceptor final {
 public:
  // All outlive it. `tls` may be null.
  Acceptor(ServerState* state, ScopedFd fd, tls::TlsContexts* tls,
           std::vector<std::unique_ptr<IoThread>>* threads)
      : state_(state),
        tls_(tls),
        threads_(threads),
        fd_(std::move(fd)),
        descriptor_(threads->front()->context(), fd_.get()),
        retry_(threads->front()->context()) {}
  ~Acceptor() {
    // The file is fd_'s to close.
    if (!is_closed_) descriptor_.release();
  }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Begins; any thread.
  void Begin() {
    boost::asio::post(descriptor_.get_executor(), [this] { AwaitClients(); });
  }

  // Ends, and waits until it has. Not from an io thread.
  void Close() {
    absl::Notification closed;
    boost::asio::post(descriptor_.get_executor(), [this, &closed] {
      is_closed_ = true;
      retry_.cancel();
      descriptor_.release();
      fd_ = ScopedFd();
      closed.Notify();
    });
    closed.WaitForNotification();
  }

 private:
  void AwaitClients() {
    if (is_closed_) return;
    descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                           [this](const boost::system::error_code& error) {
                             if (!error) TakeClients();
                           });
  }

  // Twice the deadline, so that the connection finds out before the kernel.
  void TakeClients() {
    if (is_closed_) return;
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      AcceptedSocket client =
          Accept(fd_.get(), 2 * state_->options.write_deadline);
      if (client.fd.valid()) {
        Take(std::move(client));
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
          errno == ENOMEM) {
        return RetryLater();
      }
      // A client that left before it was taken, or its network's trouble.
    }
    AwaitClients();
  }

  void RetryLater() {
    LOG_EVERY_N(ERROR, 100)
        << "HTTP: cannot take connections: " << std::strerror(errno);
    state_->metrics.Dropped("no_resources");
    retry_.expires_after(absl::ToChronoMilliseconds(kAcceptRetry));
    retry_.async_wait([this](const boost::system::error_code& error) {
      if (!error) TakeClients();
    });
  }

  void Take(AcceptedSocket client) {
    if (!state_->open.Enter(state_->options.max_connections)) {
      return TurnAway(client.fd);
    }
    std::shared_ptr<ssl_ctx_st> context =
        tls_ == nullptr ? nullptr : tls_->Get();
    (*threads_)[next_]->Adopt(std::move(client.fd), std::move(client.peer),
                              std::move(context));
    next_ = (next_ + 1) % threads_->size();
  }

  // As well as it goes without waiting: what the client sends later may cost it
  // this answer.
  void TurnAway(const ScopedFd& fd) {
    state_->metrics.Dropped("max_connections");
    if (tls_ != nullptr) return;
    state_->metrics.Answered(503);
    const std::string text =
        ErrorText(503, "The server has too many connections.");
    send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    shutdown(fd.get(), SHUT_WR);
    std::vector<char>& rest = threads_->front()->read_buffer();
    recv(fd.get(), rest.data(), rest.size(), 0);
  }

  ServerState* const state_;
  tls::TlsContexts* const tls_;
  std::vector<std::unique_ptr<IoThread>>* const threads_;
  ScopedFd fd_;
  boost::asio::posix::stream_descriptor descriptor_;  // of fd_
  boost::asio::steady_timer retry_;
  size_t next_ = 0;
  bool is_closed_ = false;
};

class HttpServer::Impl final {
 public:
  Impl(const Options& options, Handler* handler) : state_(options, handler) {}
  ~Impl() { Drain(absl::ZeroDuration()); }

  absl::Status Start() {
    BATON_RETURN_IF_ERROR(CheckOptions(state_.options));
    if (state_.options.tls != nullptr) {
      BATON_ASSIGN_OR_RETURN(
          tls_, tls::TlsContexts::Create(state_.options.tls, MakeTlsContext,
                                         "the HTTP server"));
    }
    BATON_ASSIGN_OR_RETURN(ListenSocket listening,
                           Listen(state_.options.listen, kBacklog));
    address_ = listening.address;
    state_.loopback = listening.loopback;
    RaiseFileLimit(state_.options.max_connections);
    try {
      for (int i = 0; i < state_.options.threads; ++i) {
        threads_.push_back(std::make_unique<IoThread>(&state_));
      }
      acceptor_ = std::make_unique<Acceptor>(&state_, std::move(listening.fd),
                                             tls_.get(), &threads_);
      for (const auto& thread : threads_) thread->Run();
    } catch (const std::exception& error) {
      return absl::UnavailableError(
          absl::StrCat("HTTP server: no io thread: ", error.what()));
    }
    started_ = true;
    acceptor_->Begin();
    return absl::OkStatus();
  }

  const std::string& address() const { return address_; }

  void Drain(absl::Duration patience) {
    if (started_) {
      started_ = false;
      for (const auto& thread : threads_) CHECK(!thread->is_current());
      state_.draining.store(true);
      acceptor_->Close();
      for (const auto& thread : threads_) thread->CloseIdle();
      state_.open.AwaitNone(patience);
    }
    for (const auto& thread : threads_) thread->Stop();
  }

 private:
  ServerState state_;
  std::string address_;
  std::unique_ptr<tls::TlsContexts> tls_;
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::unique_ptr<Acceptor> acceptor_;
  bool started_ = false;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const Options& options, Handler* handler) {
  CHECK(handler != nullptr);
  auto impl = std::make_unique<Impl>(options, handler);
  BATON_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() = default;

const std::string& HttpServer::address() const { return impl_->address(); }

void HttpServer::Drain(absl::Duration patience) { impl_->Drain(patience); }

}  // namespace baton::router::http
