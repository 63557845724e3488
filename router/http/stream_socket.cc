#include "router/http/stream_socket.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>

#include "common/log.h"

namespace baton::router::http {
namespace {

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL, so that a client that
// leaves would end the process.
int BioFd(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

int BioWrite(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(BioFd(bio), bytes, size, MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int BioRead(BIO* bio, char* into, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = recv(BioFd(bio), into, size, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

long BioControl(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) {
    return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  }
  return 0;
}

const BIO_METHOD* SocketBio() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK,
                                    "socket without SIGPIPE");
    CHECK(made != nullptr);
    BIO_meth_set_write(made, BioWrite);
    BIO_meth_set_read(made, BioRead);
    BIO_meth_set_ctrl(made, BioControl);
    return made;
  }();
  return method;
}

SSL* NewSsl(int fd, SSL_CTX* context) {
  if (context == nullptr) return nullptr;
  SSL* const ssl = SSL_new(context);
  BIO* const bio = BIO_new(SocketBio());
  CHECK(ssl != nullptr && bio != nullptr) << "out of memory";
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_accept_state(ssl);
  return ssl;
}

// Of a send or recv that failed.
IoResult PlainFailure(IoOutcome want) {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {want};
  return {IoOutcome::kFailed};
}

int Bounded(size_t size) {
  return static_cast<int>(std::min<size_t>(size, INT_MAX));
}

}  // namespace

StreamSocket::StreamSocket(int fd, const std::shared_ptr<ssl_ctx_st>& tls)
    : fd_(fd), ssl_(NewSsl(fd, tls.get())) {}

StreamSocket::~StreamSocket() { SSL_free(ssl_); }

IoResult StreamSocket::TlsResult(int result) const {
  if (result > 0) return {IoOutcome::kDone, static_cast<size_t>(result)};
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return {IoOutcome::kWantRead};
    case SSL_ERROR_WANT_WRITE:
      return {IoOutcome::kWantWrite};
    case SSL_ERROR_ZERO_RETURN:
      return {IoOutcome::kEnded};
    default:
      return {IoOutcome::kFailed};
  }
}

IoResult StreamSocket::Handshake() {
  if (ssl_ == nullptr) return {};
  ERR_clear_error();
  return TlsResult(SSL_do_handshake(ssl_));
}

IoResult StreamSocket::Read(char* into, size_t size) {
  CHECK_GT(size, 0u);
  if (ssl_ != nullptr) {
    ERR_clear_error();
    return TlsResult(SSL_read(ssl_, into, Bounded(size)));
  }
  const ssize_t got = recv(fd_, into, size, 0);
  if (got < 0) return PlainFailure(IoOutcome::kWantRead);
  if (got == 0) return {IoOutcome::kEnded};
  return {IoOutcome::kDone, static_cast<size_t>(got)};
}

IoResult StreamSocket::Write(absl::string_view bytes) {
  CHECK(!bytes.empty());
  if (ssl_ != nullptr) {
    ERR_clear_error();
    return TlsResult(SSL_write(ssl_, bytes.data(), Bounded(bytes.size())));
  }
  const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent < 0) return PlainFailure(IoOutcome::kWantWrite);
  return {IoOutcome::kDone, static_cast<size_t>(sent)};
}

void StreamSocket::EndOutput() {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    // One alert; the peer's own is not waited for here.
    if (SSL_is_init_finished(ssl_)) SSL_shutdown(ssl_);
  }
  shutdown(fd_, SHUT_WR);
}

void StreamSocket::ResetOnClose() {
  const linger now = {/*l_onoff=*/1, /*l_linger=*/0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

}  // namespace baton::router::http
