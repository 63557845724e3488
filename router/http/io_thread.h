// One io thread of the HTTP server, with the connections that are its own.
// Asio is the reactor: it says when a socket is ready, keeps the clock, and
// takes work from other threads.
//
// This header has Asio in it, which takes seconds to compile: only the three
// files that make the server's core may include it.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/scoped_fd.h"
#include "router/http/deadline_list.h"
#include "router/http/exchange.h"
#include "router/http/server_state.h"

struct ssl_ctx_st;

namespace baton::router::http {

class Connection;

// What a connection may be waiting for, each with a deadline of its own.
// kQuiet: the handler is to say something.
enum class Wait { kHandshake, kHeader, kBody, kIdle, kLinger, kWrite, kQuiet };
inline constexpr size_t kWaits = 7;

class IoThread final {
 public:
  // `state` outlives the thread. Throws what Asio throws when the kernel gives
  // no epoll.
  explicit IoThread(ServerState* state);
  // REQUIRES: Stop() was called, or Run() never.
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // Any thread.
  void Run();  // starts the thread; once
  // Takes a connection over. It was counted by OpenConnections::Enter.
  void Adopt(ScopedFd fd, std::string peer, std::shared_ptr<ssl_ctx_st> tls);
  // Closes connections that have no request.
  void CloseIdle();
  // Closes what is left, and ends the thread.
  void Stop();

  boost::asio::io_context& context() { return context_; }
  bool is_current() const {
    return std::this_thread::get_id() == thread_.get_id();
  }

  // The io thread itself.
  ServerState* state() { return state_; }
  AnswerQueue* answers() { return &answers_; }
  void Set(Wait wait, DeadlineHook<Connection>* hook);
  // Forgets a connection that closed.
  void Remove(const std::shared_ptr<Connection>& connection);
  // To read into; what is in it ends with the turn.
  std::vector<char>& read_buffer() { return read_buffer_; }
  // Empty, to collect what is to be sent.
  std::string& write_buffer();

 private:
  // Sends what exchanges have.
  void FlushAnswers();
  void ScheduleTick();
  // Ends waits that took too long.
  void Tick();

  ServerState* const state_;
  const absl::Duration tick_;
  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type>
      work_;
  AnswerQueue answers_;

  // The thread's own.
  boost::asio::steady_timer timer_;
  std::array<DeadlineList<Connection>, kWaits> deadlines_;
  absl::flat_hash_set<std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<Exchange>> ready_;
  std::vector<char> read_buffer_;
  std::string write_buffer_;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace baton::router::http
