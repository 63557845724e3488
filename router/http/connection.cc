#include "router/http/connection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/asio/post.hpp>

#include "common/log.h"
#include "router/http/answer_text.h"

namespace baton::router::http {
namespace {

// What is kept of bytes that a client sends ahead of an answer.
constexpr size_t kMaxAheadBytes = 16 << 10;
// Read from one connection before the others have their turn.
constexpr size_t kReadBudget = 256 << 10;

using Descriptor = boost::asio::posix::stream_descriptor;

void Free(std::string* text) { std::string().swap(*text); }

}  // namespace

Connection::Connection(IoThread* io, ScopedFd fd, std::string peer,
                       const std::shared_ptr<ssl_ctx_st>& tls)
    : io_(io),
      peer_(std::move(peer)),
      fd_(std::move(fd)),
      descriptor_(io->context()),
      socket_(fd_.get(), tls),
      phase_(tls == nullptr ? Phase::kReading : Phase::kHandshake),
      read_hook_(this),
      write_hook_(this),
      quiet_hook_(this) {}

Connection::~Connection() { CHECK(phase_ == Phase::kClosed); }

void Connection::Begin() {
  boost::system::error_code error;
  descriptor_.assign(fd_.get(), error);
  if (error) {
    LOG_EVERY_N(ERROR, 100)
        << "epoll does not take a connection: " << error.message();
    return Close();
  }
  if (phase_ == Phase::kHandshake) {
    SetReadWait(Wait::kHandshake);
    Handshake();
  } else {
    SetReadWait(Wait::kHeader);
    ReadOn();
  }
}

void Connection::WaitReadable() {
  if (waits_readable_ || phase_ == Phase::kClosed) return;
  waits_readable_ = true;
  descriptor_.async_wait(
      Descriptor::wait_read,
      [self = shared_from_this()](const boost::system::error_code& error) {
        self->waits_readable_ = false;
        if (!error) self->OnReadable();
      });
}

void Connection::WaitWritable() {
  if (waits_writable_ || phase_ == Phase::kClosed) return;
  waits_writable_ = true;
  descriptor_.async_wait(
      Descriptor::wait_write,
      [self = shared_from_this()](const boost::system::error_code& error) {
        self->waits_writable_ = false;
        if (!error) self->OnWritable();
      });
}

void Connection::OnReadable() {
  if (phase_ == Phase::kHandshake) {
    Handshake();
  } else {
    ReadOn();
  }
}

void Connection::OnWritable() {
  if (phase_ == Phase::kHandshake) return Handshake();
  if (!unsent_.empty()) WriteUnsent();
  if (read_wants_writable_) {
    read_wants_writable_ = false;
    ReadOn();
  }
}

void Connection::SetReadWait(Wait wait) {
  read_wait_ = wait;
  io_->Set(wait, &read_hook_);
}

void Connection::Handshake() {
  switch (socket_.Handshake().outcome) {
    case IoOutcome::kDone:
      phase_ = Phase::kReading;
      SetReadWait(Wait::kHeader);
      return ReadOn();
    case IoOutcome::kWantRead:
      return WaitReadable();
    case IoOutcome::kWantWrite:
      return WaitWritable();
    case IoOutcome::kEnded:
    case IoOutcome::kFailed:
      return Drop("tls");
  }
}

size_t Connection::ReadRoom() const {
  if (peer_ended_) return 0;
  switch (phase_) {
    case Phase::kHandshake:
    case Phase::kClosed:
      return 0;
    case Phase::kReading:
    case Phase::kLingering:
      return io_->read_buffer().size();
    case Phase::kAnswering:
      if (ahead_.size() >= kMaxAheadBytes) return 0;
      return kMaxAheadBytes - ahead_.size();
  }
  LOG(FATAL) << "unknown phase";
}

void Connection::ReadOn() {
  if (in_read_) return;  // The loop below goes on.
  in_read_ = true;
  std::vector<char>& buffer = io_->read_buffer();
  size_t budget = kReadBudget;
  bool may_have_more = true;
  while (!waits_readable_ && may_have_more) {
    const size_t room = std::min(ReadRoom(), buffer.size());
    if (room == 0) break;  // NextRequest goes on.
    if (budget == 0) {
      boost::asio::post(io_->context(),
                        [self = shared_from_this()] { self->ReadOn(); });
      break;
    }
    const IoResult result = socket_.Read(buffer.data(), room);
    switch (result.outcome) {
      case IoOutcome::kDone:
        budget -= std::min(budget, result.bytes);
        Received(absl::string_view(buffer.data(), result.bytes));
        // A plain socket that gave less has no more now.
        if (!socket_.encrypted() && result.bytes < room) WaitReadable();
        break;
      case IoOutcome::kWantRead:
        WaitReadable();
        break;
      case IoOutcome::kWantWrite:
        read_wants_writable_ = true;
        WaitWritable();
        may_have_more = false;
        break;
      case IoOutcome::kEnded:
        PeerEnded();
        may_have_more = false;
        break;
      case IoOutcome::kFailed:
        Close();
        break;
    }
  }
  in_read_ = false;
}

void Connection::Received(absl::string_view bytes) {
  switch (phase_) {
    case Phase::kReading:
      return Parse(bytes);
    case Phase::kAnswering:
      ahead_.append(bytes.data(), bytes.size());
      return;
    case Phase::kLingering:
    case Phase::kHandshake:
    case Phase::kClosed:
      return;
  }
}

void Connection::PeerEnded() {
  // It may have closed its half only, and read on.
  peer_ended_ = true;
  if (phase_ == Phase::kLingering && !unsent_.empty()) return;
  if (phase_ == Phase::kAnswering) {
    // What is asked for like this does not take long. Asked first: an answer
    // that comes meanwhile is begun and whole at once.
    if (is_get_ && !exchange_->begun()) return SetReadWait(Wait::kLinger);
    if (AnswerIsWhole()) return;
  }
  Close();
}

void Connection::Parse(absl::string_view bytes) {
  if (!ahead_.empty()) {
    ahead_.append(bytes.data(), bytes.size());
    bytes = ahead_;
  }
  size_t used = 0;
  if (reader_ == nullptr) {
    // Empty lines begin no request, and no deadline of one.
    used = RequestParser::EmptyLines(bytes);
    const absl::string_view rest = bytes.substr(used);
    if (rest.empty() || rest == "\r") return KeepAhead(bytes, used);
    reader_ = std::make_unique<RequestReader>(io_->state(), peer_);
    // The first request's began with the connection.
    if (read_wait_ != Wait::kHeader) SetReadWait(Wait::kHeader);
  }
  used += reader_->Feed(bytes.substr(used));
  KeepAhead(bytes, used);
  switch (reader_->state()) {
    case RequestReader::State::kHeader:
      return;
    case RequestReader::State::kBody:
      if (read_wait_ != Wait::kBody) BodyBegins();
      return;
    case RequestReader::State::kWhole:
      return Dispatch();
    case RequestReader::State::kRefused:
      return Refuse(reader_->refusal());
  }
}

void Connection::KeepAhead(absl::string_view bytes, size_t used) {
  if (ahead_.empty()) {
    ahead_.assign(bytes.data() + used, bytes.size() - used);
  } else {
    ahead_.erase(0, used);
  }
  if (ahead_.empty()) Free(&ahead_);
}

void Connection::BodyBegins() {
  SetReadWait(Wait::kBody);
  if (reader_->wants_continue() && unsent_.empty()) {
    Output("HTTP/1.1 100 Continue\r\n\r\n", Next::kMore);
  }
}

void Connection::Dispatch() {
  ServerState* const state = io_->state();
  read_hook_.Clear();
  phase_ = Phase::kAnswering;
  AnswerShape shape = reader_->shape();
  std::optional<Response> verdict = reader_->TakeVerdict();
  Request request = reader_->Take();
  reader_.reset();
  http11_ = shape.http11;
  if (state->draining.load()) shape.keep_alive = false;
  shape.head = request.method == "HEAD";
  is_get_ = shape.head || request.method == "GET";
  exchange_ = std::make_shared<Exchange>(
      shape, state->options.max_pending_bytes, io_->answers(), this);
  spoke_ = false;
  WatchSilence();
  if (verdict.has_value()) {
    exchange_->Send(*std::move(verdict));
  } else {
    state->handler->Handle(std::move(request), MakeResponder(exchange_));
  }
  if (peer_ended_) PeerEnded();
}

void Connection::Refuse(const Response& response) {
  phase_ = Phase::kLingering;
  const int status = response.status;
  const std::string text = LastText(response);
  reader_.reset();  // The response may be its.
  Free(&ahead_);
  if (!unsent_.empty()) return Close();
  SetReadWait(Wait::kLinger);
  io_->state()->metrics.Answered(status);
  Output(text, Next::kClose);
}

void Connection::Flush() {
  if (phase_ != Phase::kAnswering) return;
  const auto self = shared_from_this();
  if (!unsent_.empty()) {
    // More waits until that is sent; an end by force does not.
    const Next next = exchange_->next();
    if (next == Next::kGiveUp) Drop("slow_reader");
    if (next == Next::kAbort) CutOff();
    return;
  }
  std::string& bytes = io_->write_buffer();
  const Exchange::Output output = exchange_->Take(&bytes);
  if (output.status != 0) io_->state()->metrics.Answered(output.status);
  if (output.next == Next::kGiveUp) return Drop("slow_reader");
  Output(bytes, output.next);
}

size_t Connection::WriteSome(absl::string_view bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const IoResult result = socket_.Write(bytes.substr(sent));
    if (result.outcome == IoOutcome::kWantWrite) break;
    if (result.outcome != IoOutcome::kDone) {
      Close();
      break;
    }
    sent += result.bytes;
  }
  return sent;
}

void Connection::Output(absl::string_view bytes, Next next) {
  CHECK(unsent_.empty());
  next_ = next;
  spoke_ = spoke_ || !bytes.empty();
  const size_t sent = WriteSome(bytes);
  if (phase_ == Phase::kClosed) return;
  if (sent == bytes.size()) return Settle();
  if (next == Next::kAbort) return CutOff();
  unsent_.assign(bytes.data() + sent, bytes.size() - sent);
  unsent_begin_ = 0;
  if (exchange_ != nullptr) exchange_->SetUnsent(unsent_.size());
  io_->Set(Wait::kWrite, &write_hook_);
  WaitWritable();
}

void Connection::WriteUnsent() {
  const absl::string_view rest =
      absl::string_view(unsent_).substr(unsent_begin_);
  const size_t sent = WriteSome(rest);
  if (phase_ == Phase::kClosed) return;
  if (exchange_ != nullptr) exchange_->SetUnsent(rest.size() - sent);
  if (sent < rest.size()) {
    unsent_begin_ += sent;
    if (sent > 0) io_->Set(Wait::kWrite, &write_hook_);
    return WaitWritable();
  }
  Free(&unsent_);
  write_hook_.Clear();
  Settle();
  // What the handler wrote meanwhile.
  if (next_ == Next::kMore) Flush();
}

void Connection::Settle() {
  switch (next_) {
    case Next::kMore:
      return;
    case Next::kKeepAlive:
      return NextRequest();
    case Next::kClose:
      return Linger();
    case Next::kAbort:
    case Next::kGiveUp:
      return CutOff();
  }
}

void Connection::NextRequest() {
  ForgetExchange();
  if (io_->state()->draining.load()) return Linger();
  phase_ = Phase::kReading;
  SetReadWait(Wait::kIdle);
  std::string ahead;
  ahead.swap(ahead_);
  if (!ahead.empty()) Parse(ahead);
  // What would make the next request whole does not come any more.
  if (peer_ended_ && phase_ == Phase::kReading) return Linger();
  ReadOn();
}

void Connection::Linger() {
  ForgetExchange();
  phase_ = Phase::kLingering;
  Free(&ahead_);
  socket_.EndOutput();
  if (peer_ended_) return Close();
  SetReadWait(Wait::kLinger);
  ReadOn();
}

void Connection::WatchSilence() {
  if (io_->state()->options.quiet_interval == absl::ZeroDuration()) return;
  io_->Set(Wait::kQuiet, &quiet_hook_);
}

void Connection::ForgetExchange() {
  quiet_hook_.Clear();
  if (exchange_ == nullptr) return;
  const std::shared_ptr<Exchange> exchange = std::move(exchange_);
  exchange->Detach();
}

bool Connection::AnswerIsWhole() const {
  if (exchange_ == nullptr) return false;
  const Next next = exchange_->next();
  return next == Next::kKeepAlive || next == Next::kClose;
}

void Connection::CutOff() {
  // A length or a chunk that is missing says it; HTTP/1.0 has neither.
  if (!unsent_.empty() || !http11_) socket_.ResetOnClose();
  Close();
}

void Connection::Drop(absl::string_view reason) {
  io_->state()->metrics.Dropped(reason);
  // The kernel need not keep what such a client does not read.
  socket_.ResetOnClose();
  Close();
}

void Connection::Expired(Wait wait) {
  const auto self = shared_from_this();
  switch (wait) {
    case Wait::kHandshake:
      return Drop("handshake_deadline");
    case Wait::kHeader:
      if (reader_ == nullptr) return Drop("header_deadline");
      io_->state()->metrics.Dropped("header_deadline");
      return Refuse(ErrorResponse(408, "The request's headers took too long."));
    case Wait::kBody:
      io_->state()->metrics.Dropped("body_deadline");
      return Refuse(ErrorResponse(408, "The request's body took too long."));
    case Wait::kWrite:
      return Drop("write_deadline");
    case Wait::kQuiet:
      if (phase_ != Phase::kAnswering || exchange_ == nullptr) return;
      // A client that takes nothing needs nothing more.
      if (!std::exchange(spoke_, false) && unsent_.empty()) {
        exchange_->SayAlive();
      }
      return WatchSilence();
    case Wait::kIdle:
      socket_.EndOutput();
      return Close();
    case Wait::kLinger:
      // Of a client that ended its half, and reads on.
      if (AnswerIsWhole()) return;
      return Close();
  }
}

void Connection::CloseIfIdle() {
  const bool idle = phase_ == Phase::kHandshake ||
                    (phase_ == Phase::kReading && reader_ == nullptr);
  if (!idle) return;
  socket_.EndOutput();
  Close();
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();
  phase_ = Phase::kClosed;
  read_hook_.Clear();
  write_hook_.Clear();
  reader_.reset();
  Free(&ahead_);
  Free(&unsent_);
  if (descriptor_.is_open()) descriptor_.release();
  fd_ = ScopedFd();
  ForgetExchange();
  io_->Remove(self);
}

}  // namespace baton::router::http
