// An HTTP/1.1 server for many slow streams: requests come from clients that
// nobody trusts, answers may be written piece by piece for minutes, by the
// thousand, from one thread of the caller's. Knows nothing of what it serves.
//
// A connection belongs to one io thread, which does all of its system calls.
// One request of it is served at a time; requests sent ahead wait, in order.
// Everything that a client can make the server hold has a bound, and every wait
// for it has a deadline: see Options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/http/http_message.h"

namespace baton::metrics {
class Metrics;
}  // namespace baton::metrics
namespace baton::tls {
class PemFiles;
}  // namespace baton::tls

namespace baton::router::http {

class HttpServer final {
 public:
  // Most threads of a server.
  static constexpr int kMaxThreads = 64;

  struct Options {
    // "host:port", "[IPv6]:port"; port 0 takes a free one.
    std::string listen = "127.0.0.1:8000";
    // Connections are dealt out to them in turn. From 1 to kMaxThreads.
    int threads = 1;

    // Connections over this are answered with 503 and closed. The limit of open
    // files is raised to it, as far as the process may.
    int64_t max_connections = 16384;
    // Of the request line and headers together; over it: 431.
    size_t max_header_bytes = 16 << 10;
    // Over it: 413.
    size_t max_body_bytes = 16 << 20;
    // Of all bodies that are being read, or that a handler still holds; over
    // it: 503.
    size_t max_body_bytes_total = size_t{1} << 30;
    // Bodies of up to this are not counted among them, so that large ones never
    // keep a small one out: max_connections bounds these.
    size_t small_body_bytes = 64 << 10;
    // Of a stream's bytes that were written while the client left those before
    // untaken, besides AllowPending's; over it Write returns false and the
    // connection is closed. 64 times as much may be written before the io
    // thread has had its turn, which is not the client's fault.
    size_t max_pending_bytes = 1 << 20;

    // From the connect, or a request's first byte, to the end of its headers;
    // from there to the end of its body. Slow trickles do not move them.
    absl::Duration header_deadline = absl::Seconds(10);
    absl::Duration body_deadline = absl::Seconds(30);
    // Between requests.
    absl::Duration idle_deadline = absl::Seconds(75);
    // While bytes wait to be sent, and the client takes none of them.
    absl::Duration write_deadline = absl::Seconds(10);
    // A stream that says nothing for so long, or up to twice, is kept alive
    // (Responder::KeepAlive); zero: none is.
    absl::Duration quiet_interval = absl::Seconds(10);

    // For HTTPS: read anew for new connections when the files change.
    std::shared_ptr<tls::PemFiles> tls;
    // Outlives the server; without it nothing is counted.
    metrics::Metrics* metrics = nullptr;
  };

  // Listens and serves. `handler` outlives the server. InvalidArgument naming
  // the option; Unavailable when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const Options& options, Handler* handler);

  // Drain(absl::ZeroDuration()).
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "127.0.0.1:8000", with the port that was taken. Any thread.
  const std::string& address() const;

  // Takes no more connections, closes those without a request, lets the others
  // end their answers for up to `patience`, and cuts what is left then. Blocks
  // until no connection is left and the handler is no longer called; responders
  // may live on. Once; not from a thread of the server.
  void Drain(absl::Duration patience);

 private:
  class Impl;

  explicit HttpServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace baton::router::http
