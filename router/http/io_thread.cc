#include "router/http/io_thread.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <boost/asio/post.hpp>

#include "common/clock.h"
#include "common/log.h"
#include "router/http/connection.h"

namespace baton::router::http {
namespace {

// What one read may take; one such buffer serves all connections of a thread.
constexpr size_t kReadBytes = 64 << 10;
constexpr int kFlushRounds = 4;
// The write buffer is given back when an answer was larger.
constexpr size_t kMaxWriteBuffer = 1 << 20;
// For a client to close after the last answer.
constexpr absl::Duration kLingerDeadline = absl::Seconds(2);

// Deadlines are kept to an eighth of the shortest.
absl::Duration TickOf(const HttpServer::Options& options) {
  absl::Duration shortest =
      std::min({options.header_deadline, options.body_deadline,
                options.idle_deadline, options.write_deadline});
  if (options.quiet_interval > absl::ZeroDuration()) {
    shortest = std::min(shortest, options.quiet_interval);
  }
  return std::clamp(shortest / 8, absl::Milliseconds(1),
                    absl::Milliseconds(250));
}

// In the order of Wait.
std::array<DeadlineList<Connection>, kWaits> MakeDeadlines(
    const HttpServer::Options& options) {
  using List = DeadlineList<Connection>;
  return {List(options.header_deadline), List(options.header_deadline),
          List(options.body_deadline),   List(options.idle_deadline),
          List(kLingerDeadline),         List(options.write_deadline),
          List(options.quiet_interval)};
}

}  // namespace

IoThread::IoThread(ServerState* state)
    : state_(state),
      tick_(TickOf(state->options)),
      context_(/*concurrency_hint=*/1),
      work_(context_.get_executor()),
      answers_(
          [this] { boost::asio::post(context_, [this] { FlushAnswers(); }); }),
      timer_(context_),
      deadlines_(MakeDeadlines(state->options)),
      read_buffer_(kReadBytes) {}

IoThread::~IoThread() { CHECK(!thread_.joinable()); }

void IoThread::Run() {
  ScheduleTick();
  thread_ = std::thread([this] { context_.run(); });
}

void IoThread::Adopt(ScopedFd fd, std::string peer,
                     std::shared_ptr<ssl_ctx_st> tls) {
  boost::asio::post(context_, [this, fd = std::move(fd), peer = std::move(peer),
                               tls = std::move(tls)]() mutable {
    auto connection =
        std::make_shared<Connection>(this, std::move(fd), std::move(peer), tls);
    connections_.insert(connection);
    state_->metrics.ConnectionOpened();
    connection->Begin();
  });
}

void IoThread::CloseIdle() {
  boost::asio::post(context_, [this] {
    const std::vector<std::shared_ptr<Connection>> all(connections_.begin(),
                                                       connections_.end());
    for (const auto& connection : all) connection->CloseIfIdle();
  });
}

void IoThread::Stop() {
  if (!thread_.joinable()) return;
  boost::asio::post(context_, [this] {
    const std::vector<std::shared_ptr<Connection>> all(connections_.begin(),
                                                       connections_.end());
    for (const auto& connection : all) connection->Close();
    stopping_ = true;
    timer_.cancel();
    work_.reset();
  });
  thread_.join();
}

void IoThread::Set(Wait wait, DeadlineHook<Connection>* hook) {
  deadlines_[static_cast<size_t>(wait)].Set(hook, Clock::Monotonic()->Now());
}

void IoThread::Remove(const std::shared_ptr<Connection>& connection) {
  CHECK_EQ(connections_.erase(connection), 1u);
  state_->metrics.ConnectionClosed();
  state_->open.Leave();
}

std::string& IoThread::write_buffer() {
  write_buffer_.clear();
  if (write_buffer_.capacity() > kMaxWriteBuffer) {
    std::string().swap(write_buffer_);
  }
  return write_buffer_;
}

void IoThread::FlushAnswers() {
  // What comes meanwhile is sent, too, without another wake. But sockets and
  // deadlines want their turn.
  for (int round = 0; round < kFlushRounds; ++round) {
    if (!answers_.Take(&ready_)) return;
    for (const std::shared_ptr<Exchange>& exchange : ready_) {
      if (Connection* connection = exchange->connection()) connection->Flush();
    }
    ready_.clear();
  }
  boost::asio::post(context_, [this] { FlushAnswers(); });
}

void IoThread::ScheduleTick() {
  timer_.expires_after(absl::ToChronoNanoseconds(tick_));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || stopping_) return;
    Tick();
    ScheduleTick();
  });
}

void IoThread::Tick() {
  const absl::Time now = Clock::Monotonic()->Now();
  for (size_t i = 0; i < kWaits; ++i) {
    while (DeadlineHook<Connection>* hook = deadlines_[i].TakeExpired(now)) {
      hook->owner()->Expired(static_cast<Wait>(i));
    }
  }
}

}  // namespace baton::router::http
