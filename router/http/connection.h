// One connection of a client. All of it on its io thread.
//
//   kHandshake -> kReading      TLS is up
//   kReading -> kAnswering      a request is whole, and with the handler or,
//                               refused by it before, about to be answered
//   kAnswering -> kReading      its answer is sent; the next request
//   kReading -> kLingering      a bad request: its answer is on the way
//   kAnswering -> kLingering    the last answer is sent
//   any -> kClosed
//
// Reading goes on while a request is answered: that is how a client's leaving
// is seen. What it sends ahead is kept up to a bound, after which nothing is
// read, and its leaving is seen when something is written. What holds when the
// client ends its half is in http_server.h. Lingering waits for the client to
// close first, because closing with bytes unread would take back the answer.
//
// The header has Asio in it; see io_thread.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <boost/asio/posix/stream_descriptor.hpp>

#include "absl/strings/string_view.h"
#include "common/scoped_fd.h"
#include "router/http/deadline_list.h"
#include "router/http/exchange.h"
#include "router/http/http_message.h"
#include "router/http/io_thread.h"
#include "router/http/request_reader.h"
#include "router/http/stream_socket.h"

namespace baton::router::http {

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(IoThread* io, ScopedFd fd, std::string peer,
             const std::shared_ptr<ssl_ctx_st>& tls);
  // REQUIRES: closed.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Begins to read; once.
  void Begin();
  // Sends what the exchange has.
  void Flush();
  // A deadline has passed.
  void Expired(Wait wait);
  // Closes when no request has begun.
  void CloseIfIdle();
  // Closes at once; tells the handler unless its answer has ended.
  void Close();

 private:
  enum class Phase { kHandshake, kReading, kAnswering, kLingering, kClosed };
  using Next = Exchange::Next;

  void WaitReadable();
  void WaitWritable();
  void OnReadable();
  void OnWritable();
  // Exchanges the deadline of what the client is to do next.
  void SetReadWait(Wait wait);

  void Handshake();
  // Reads until there is nothing, or nothing may be read now.
  void ReadOn();
  // How many bytes may be read now.
  size_t ReadRoom() const;
  void Received(absl::string_view bytes);
  // The peer sends no more.
  void PeerEnded();

  // Goes on with a request; `bytes` follow those in `ahead_`.
  void Parse(absl::string_view bytes);
  // `ahead_` is what `bytes`, which may be it, have behind the first `used`.
  void KeepAhead(absl::string_view bytes, size_t used);
  void BodyBegins();
  void Dispatch();
  // Answers a request that does not reach the handler, and ends.
  void Refuse(const Response& response);

  // Sends `bytes`, then does what `next` says. REQUIRES: nothing is unsent.
  void Output(absl::string_view bytes, Next next);
  // Writes what the socket takes, and returns how much. Closes when the
  // connection is broken.
  size_t WriteSome(absl::string_view bytes);
  void WriteUnsent();
  // All is sent: what comes next.
  void Settle();
  void NextRequest();
  void Linger();
  void ForgetExchange();
  // Looks soon whether the answer is silent.
  void WatchSilence();
  // All of its bytes are here, or sent already.
  bool AnswerIsWhole() const;
  // Closes so that the client sees that the answer is not whole.
  void CutOff();
  // Closes a client that does not do its part, and counts it.
  void Drop(absl::string_view reason);

  IoThread* const io_;
  const std::string peer_;
  ScopedFd fd_;
  boost::asio::posix::stream_descriptor descriptor_;  // of fd_
  StreamSocket socket_;                               // on fd_
  Phase phase_;

  DeadlineHook<Connection> read_hook_;
  DeadlineHook<Connection> write_hook_;
  DeadlineHook<Connection> quiet_hook_;
  bool spoke_ = false;                 // since it was last looked at
  Wait read_wait_ = Wait::kHandshake;  // the last that was set
  bool waits_readable_ = false;
  bool waits_writable_ = false;
  bool read_wants_writable_ = false;  // TLS has to write before it reads on
  bool in_read_ = false;              // ReadOn is at work
  bool peer_ended_ = false;
  // The request being answered.
  bool http11_ = true;
  bool is_get_ = false;  // or HEAD

  std::unique_ptr<RequestReader> reader_;  // from a request's first byte on
  std::string ahead_;                      // bytes that are not used up yet

  std::shared_ptr<Exchange> exchange_;  // while a request is answered
  Next next_ = Next::kMore;             // once all is sent
  std::string unsent_;                  // what the socket did not take,
  size_t unsent_begin_ = 0;             // but for these
};

}  // namespace baton::router::http
