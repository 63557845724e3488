// Reads one HTTP/1 request from the bytes of a connection, whatever pieces they
// come in. Knows no socket; of one thread at a time. Made for a hostile client:
// what it holds is bounded by its limits, and a request whose end two servers
// could see in different places (request smuggling) is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "router/http/http_message.h"

namespace baton::router::http {

class RequestParser final {
 public:
  struct Limits {
    size_t header_bytes = 16 << 10;  // request line and headers
    size_t body_bytes = 16 << 20;    // without the framing of chunks
  };

  enum class State {
    kHeader,    // more bytes are needed
    kBody,      // the header is read; more bytes are needed
    kComplete,  // TakeRequest has the request
    kFailed,    // failure() says why; the connection is of no more use
  };

  // What to tell the client.
  struct Failure {
    int status = 400;
    std::string message;
  };

  explicit RequestParser(const Limits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // How many bytes of empty lines `bytes` begin with. They belong to no
  // request: old clients end a body with one.
  static size_t EmptyLines(absl::string_view bytes);

  // Reads on, and returns how many of `bytes` are used up. The others are to be
  // given again, with more behind them; after kComplete they belong to the next
  // request. REQUIRES: state() is kHeader or kBody.
  size_t Feed(absl::string_view bytes);

  State state() const { return state_; }
  // REQUIRES: kFailed.
  const Failure& failure() const;

  // From kBody on, until TakeRequest: with what was read of the body so far.
  Request* head();
  // From kBody on. What the header says; nothing for a chunked body.
  std::optional<uint64_t> body_length() const;
  // From kBody on. The client waits for "100 Continue" before it sends a body.
  bool expects_continue() const;
  // Of the body that was read so far.
  size_t body_bytes() const;

  // REQUIRES: kComplete, for all that follow.
  bool keep_alive() const;  // what the client wants
  bool http11() const;      // otherwise HTTP/1.0
  // Without what only the connection knows, unless head() was given it; once.
  Request TakeRequest();

 private:
  class Impl;

  void Fail(Failure failure);

  const size_t max_header_bytes_;
  const std::unique_ptr<Impl> impl_;
  State state_ = State::kHeader;
  size_t header_bytes_ = 0;  // used up
};

}  // namespace baton::router::http
