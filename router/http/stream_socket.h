// Bytes in and out of one connected socket, plain or through TLS. Nothing here
// blocks: a call that would says what to wait for. Of one thread.
//
// TLS is OpenSSL over the socket itself, so an idle stream holds none of the
// two 17 KB buffers that Asio's ssl::stream keeps.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/strings/string_view.h"

struct ssl_ctx_st;
struct ssl_st;

namespace baton::router::http {

enum class IoOutcome {
  kDone,
  kWantRead,   // call again when the socket is readable
  kWantWrite,  // call again when the socket is writable
  kEnded,      // the peer sends no more
  kFailed,     // the connection is broken
};

struct IoResult {
  IoOutcome outcome = IoOutcome::kDone;
  size_t bytes = 0;  // of kDone: at least one
};

class StreamSocket final {
 public:
  // `fd` is another's, not blocking, and outlives this object. Without `tls`
  // the bytes are plain.
  StreamSocket(int fd, const std::shared_ptr<ssl_ctx_st>& tls);
  ~StreamSocket();
  StreamSocket(const StreamSocket&) = delete;
  StreamSocket& operator=(const StreamSocket&) = delete;

  bool encrypted() const { return ssl_ != nullptr; }

  // To be done before Read and Write; at once for plain ones.
  IoResult Handshake();
  // REQUIRES: size > 0.
  IoResult Read(char* into, size_t size);
  // May take a part. After kWantWrite the next call must give the same bytes,
  // and may give more behind them. REQUIRES: `bytes` is not empty.
  IoResult Write(absl::string_view bytes);

  // Tells the peer that no more bytes come.
  void EndOutput();
  // Makes the close that follows drop what is unsent, and tell the peer so.
  void ResetOnClose();

 private:
  IoResult TlsResult(int result) const;

  const int fd_;
  ssl_st* const ssl_;  // null for plain ones
};

}  // namespace baton::router::http
