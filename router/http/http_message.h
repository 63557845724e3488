// One HTTP request and its answer, as handlers see them: no socket, no library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::router::http {

class BodyShare;

// In order; names of requests are in lower case.
using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;  // "GET"
  std::string path;    // decoded, without the query: "/v1/models"
  std::string query;   // as it came, without "?"
  Headers headers;
  std::string body;
  // Counts a large body against the server's bound on all of them: to be held
  // for as long as the body is. Null for small ones.
  std::shared_ptr<BodyShare> body_share;
  std::string peer;  // "127.0.0.1:4711"
  // The server listens on a loopback address.
  bool loopback = false;
  // When the whole request was there; monotonic.
  absl::Time received_at;

  // The first header of that (lower-case) name, or empty.
  absl::string_view Header(absl::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return "";
  }
};

struct Response {
  int status = 200;
  // Content-Length, Date, Connection and the like are the server's.
  Headers headers;
  std::string body;
};

// The way to answer one request. Any thread, never blocks; at most one of Send
// and Start is called, once. Answers after the client is gone are dropped. Who
// lets go of a responder without an answer gives a 500; of a stream without its
// end, an Abort.
class Responder {
 public:
  virtual ~Responder() = default;

  // The whole answer.
  virtual void Send(Response response) = 0;

  // A streamed answer: Start, Write as often as needed, End. The body of
  // `head` is its first piece.
  virtual void Start(Response head) = 0;
  // From now on, while the answer says nothing for the server's quiet_interval
  // (http_server.h), the client is sent `text`, at first behind `head`: as if
  // that had been given to Start, which then adds its body alone. For what
  // stands between, and ends connections that are silent. At most once, before
  // the answer begins.
  virtual void KeepAlive(Response head, std::string text) = 0;
  // As Send, unless KeepAlive has begun the answer: then false, and the answer
  // is to be streamed.
  virtual bool SendUnlessBegun(Response response) = 0;
  // False when the client reads too slowly (its bound is reached) or is gone:
  // the bytes are lost, and the connection is closed.
  virtual bool Write(absl::string_view bytes) = 0;
  // So many more bytes of this stream may wait for a client that is slow: for
  // what is long by the request's own nature. Before they are written.
  virtual void AllowPending(size_t bytes) = 0;
  // Ends the body well.
  virtual void End() = 0;
  // Closes the connection without ending the body, so that the client sees that
  // the answer is not whole. Also instead of Send.
  virtual void Abort() = 0;

  // Calls `gone` once, on a thread of the server, when the client goes away, or
  // is given up, before the answer has ended. At once if that has happened. The
  // last one given is the one that is called.
  virtual void OnGone(std::function<void()> gone) = 0;
};

// Answers requests. Called on the server's threads, many at a time; must not
// block: what takes longer than about a millisecond goes to another thread.
class Handler {
 public:
  virtual ~Handler() = default;

  // Called once for each request, when its header has been read: whether that
  // alone is enough to refuse it. `head` may have some of the body, and has no
  // time. A refusal is the answer. Where a large body is still to come it is
  // not read, and the connection is closed.
  virtual std::optional<Response> Check(const Request& head) {
    static_cast<void>(head);
    return std::nullopt;
  }

  // What is said to a request that Check did not refuse, and whose body the
  // server has no room for now; none: an answer of the server's own.
  virtual std::optional<Response> NoRoom(const Request& head) {
    static_cast<void>(head);
    return std::nullopt;
  }

  // A whole request, which Check did not refuse.
  virtual void Handle(Request request,
                      std::shared_ptr<Responder> responder) = 0;
};

}  // namespace baton::router::http
