// A client that is a bare socket, so that a test decides about every byte. Each
// wait ends after 20 s with a failure. One thread.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "common/scoped_fd.h"

struct ssl_ctx_st;
struct ssl_st;

namespace baton::router::http {

struct RawAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without the framing of chunks
  bool whole = false;                          // it ended as its framing says
};

class RawClient final {
 public:
  // Connects to "127.0.0.1:PORT" or "[::1]:PORT". `receive_bytes`: the socket's
  // receive buffer, if not 0. With `tls`, a TLS client; see tls_ok().
  explicit RawClient(const std::string& address, int receive_bytes = 0,
                     ssl_ctx_st* tls = nullptr);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False when the connection is broken.
  bool Send(absl::string_view bytes);
  void EndOutput();  // half close
  void Close();
  void Reset();

  // Reads one answer. `head` says that the request was HEAD.
  RawAnswer Read(bool head = false);
  // Reads up to and with `marker`; less when the connection ends.
  std::string ReadUntil(absl::string_view marker);
  // Reads until the server closes.
  std::string ReadToEnd();
  // The server closed, or reset; waits for it. False when bytes come instead.
  bool Ended();

  bool tls_ok() const { return tls_ok_; }
  ssl_st* ssl() const { return ssl_; }
  int fd() const { return fd_.get(); }

 private:
  // Appends to buffer_; false at the end.
  bool Fill();
  std::string TakeFront(size_t size);

  ScopedFd fd_;
  ssl_st* ssl_ = nullptr;
  bool tls_ok_ = false;
  std::string buffer_;
};

}  // namespace baton::router::http
