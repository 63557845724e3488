#include "kv_transfer/transports/tcp/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/tls/tls_context.h"
#include "kv_transfer/transports/tcp_socket.h"

namespace baton::kv_transfer {
namespace {

// A record's bytes before they are encrypted, at most.
constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;

// What goes to or comes from the socket at a time: enough records that a call
// of the kernel costs little, few enough to stay in the nearest caches.
constexpr size_t kBatchBytes = 8 * kRecordBytes;

// The same before the handshake is over.
constexpr size_t kHandshakeBytes = size_t{4} << 10;

// More than a Read has room for; what a peer sends that is no data (new keys,
// again and again) ends there, too.
constexpr int kRefillsPerRead = 64;

// What a peer may have us answer (to new keys of its own) without taking it.
constexpr size_t kMaxUnsentBytes = 2 * kBatchBytes;

// Encrypted bytes, between OpenSSL and the socket.
struct Ciphertext {
  std::vector<unsigned char> in;  // received; not looked at from in_begin on
  size_t in_begin = 0;
  size_t in_end = 0;
  std::vector<unsigned char> out;  // not sent from out_begin on
  size_t out_begin = 0;

  bool sent() const { return out_begin == out.size(); }
};

Ciphertext* Of(BIO* bio) { return static_cast<Ciphertext*>(BIO_get_data(bio)); }

int ReadFrom(BIO* bio, char* to, size_t wanted, size_t* read) {
  BIO_clear_retry_flags(bio);
  Ciphertext& bytes = *Of(bio);
  *read = std::min(wanted, bytes.in_end - bytes.in_begin);
  if (*read == 0) {
    BIO_set_retry_read(bio);
    return 0;
  }
  std::memcpy(to, bytes.in.data() + bytes.in_begin, *read);
  bytes.in_begin += *read;
  return 1;
}

int WriteTo(BIO* bio, const char* from, size_t size, size_t* written) {
  BIO_clear_retry_flags(bio);
  Ciphertext& bytes = *Of(bio);
  // Of the same type, so that it is one copy of all.
  const auto* const first = reinterpret_cast<const unsigned char*>(from);
  bytes.out.insert(bytes.out.end(), first, first + size);
  *written = size;
  return 1;
}

long Control(BIO* bio, int what, long, void*) {
  return what == BIO_CTRL_FLUSH ? 1 : 0;
}

// Made once, for all threads.
const BIO_METHOD* MemoryMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(
        BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "baton ciphertext");
    CHECK(made != nullptr);
    BIO_meth_set_read_ex(made, ReadFrom);
    BIO_meth_set_write_ex(made, WriteTo);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  return method;
}

// Whether ours or the peer's is not good enough.
bool IsOfCertificates(unsigned long error) {
  const int reason = ERR_GET_REASON(error);
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED ||
      reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return true;
  }
  // What the peer says of ours.
  const int alert = reason - SSL_AD_REASON_OFFSET;
  return (alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_ACCESS_DENIED) ||
         alert == SSL_AD_CERTIFICATE_REQUIRED;
}

class TlsStream final : public TcpStream {
 public:
  TlsStream(SSL_CTX* context, TlsSide side, uint64_t records_per_key)
      : side_(side),
        records_per_key_(records_per_key),
        ssl_(SSL_new(context), SSL_free) {
    CHECK(ssl_ != nullptr);
    BIO* const bio = BIO_new(MemoryMethod());
    CHECK(bio != nullptr);
    BIO_set_data(bio, &bytes_);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);  // takes it
    side == TlsSide::kConnects ? SSL_set_connect_state(ssl_.get())
                               : SSL_set_accept_state(ssl_.get());
    // More once it is known who that is.
    bytes_.in.resize(kHandshakeBytes);
  }

  absl::StatusOr<bool> Handshake(int socket) override {
    for (;;) {
      ERR_clear_error();
      const int result = SSL_do_handshake(ssl_.get());
      const int error = SSL_get_error(ssl_.get(), result);
      absl::Status failure;
      if (result != 1 && error != SSL_ERROR_WANT_READ) failure = Failure(error);
      // Also, where it failed, why the peer is not talked to.
      const absl::Status sent = SendOut(socket);
      BATON_RETURN_IF_ERROR(failure);
      if (result == 1) {
        BATON_RETURN_IF_ERROR(sent);
        bytes_.in.resize(kBatchBytes);
        bytes_.out.reserve(kBatchBytes + 2 * kRecordBytes);
        return true;
      }
      // Before a connection that broke for what the peer said first.
      const absl::StatusOr<uint64_t> received = Refill(socket);
      if (!received.ok()) {
        return absl::UnavailableError(absl::StrCat(
            "TLS: ", received.status().message(), " during the handshake",
            side_ == TlsSide::kConnects ? ": it may take KV in plain text only"
                                        : ""));
      }
      if (*received == 0) return false;
    }
  }

  absl::StatusOr<uint64_t> Write(int socket,
                                 absl::Span<const iovec> pieces) override {
    uint64_t taken = 0;
    BATON_RETURN_IF_ERROR(SendOut(socket));
    size_t next = 0, offset = 0;  // within pieces
    while (bytes_.sent() && next < pieces.size()) {
      while (next < pieces.size() && bytes_.out.size() < kBatchBytes) {
        const iovec& piece = pieces[next];
        const size_t size = std::min(piece.iov_len - offset, kRecordBytes);
        if (size > 0) {
          BATON_RETURN_IF_ERROR(
              Encrypt(static_cast<const char*>(piece.iov_base) + offset, size));
        }
        taken += size;
        offset += size;
        if (offset == piece.iov_len) {
          ++next;
          offset = 0;
        }
      }
      BATON_RETURN_IF_ERROR(SendOut(socket));
    }
    return taken;
  }

  absl::StatusOr<uint64_t> Read(int socket,
                                absl::Span<const iovec> pieces) override {
    if (!failure_.ok()) return failure_;
    uint64_t total = 0;
    bool more = true;
    refills_ = 0;
    for (const iovec& piece : pieces) {
      for (size_t filled = 0; more && filled < piece.iov_len;) {
        BATON_ASSIGN_OR_RETURN(
            const uint64_t n,
            ReadSome(socket, static_cast<char*>(piece.iov_base) + filled,
                     piece.iov_len - filled, total));
        more = n > 0;
        filled += n;
        total += n;
      }
    }
    stopped_full_ = more;
    // What it had to answer.
    BATON_RETURN_IF_ERROR(SendOut(socket));
    return total;
  }

  absl::StatusOr<uint64_t> Skip(int socket, uint64_t bytes) override {
    std::array<char, kRecordBytes> nowhere;
    uint64_t total = 0;
    for (;;) {
      const iovec piece = {nowhere.data(),
                           std::min<uint64_t>(bytes - total, nowhere.size())};
      // As Read, an end is for the next call when there was something before.
      const absl::StatusOr<uint64_t> read = Read(socket, {&piece, 1});
      if (!read.ok() && total == 0) return read;
      if (!read.ok()) return total;
      total += *read;
      if (*read < piece.iov_len || total == bytes) return total;
    }
  }

  bool HasUnsent() const override { return !bytes_.sent(); }

  bool HasUnread() const override {
    if (!failure_.ok()) return true;
    return stopped_full_ &&
           (SSL_pending(ssl_.get()) > 0 || bytes_.in_begin < bytes_.in_end);
  }

 private:
  // Why OpenSSL does not go on.
  absl::Status Failure(int error) {
    if (error == SSL_ERROR_ZERO_RETURN) {
      return absl::UnavailableError("the peer hung up");
    }
    const bool of_certificate = IsOfCertificates(ERR_peek_error());
    std::string text = tls::TlsErrorText("TLS");
    const long verified = SSL_get_verify_result(ssl_.get());
    if (verified != X509_V_OK) {
      absl::StrAppend(&text, ": ", X509_verify_cert_error_string(verified));
    }
    return of_certificate ? absl::PermissionDeniedError(text)
                          : absl::UnavailableError(text);
  }

  // One record; REQUIRES: 0 < size <= kRecordBytes.
  absl::Status Encrypt(const char* from, size_t size) {
    ERR_clear_error();
    if (++records_ % records_per_key_ == 0 &&
        SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
      return absl::UnavailableError(tls::TlsErrorText("TLS: no new key"));
    }
    size_t written = 0;
    const int result = SSL_write_ex(ssl_.get(), from, size, &written);
    // There is always room in memory.
    if (result != 1) return Failure(SSL_get_error(ssl_.get(), result));
    CHECK_EQ(written, size);
    return absl::OkStatus();
  }

  // 0: there is no more for now, or so much that others are to have their turn.
  // When the connection has ended but `before` bytes came first, 0 as well: the
  // next call says so.
  absl::StatusOr<uint64_t> ReadSome(int socket, char* to, size_t size,
                                    uint64_t before) {
    for (;;) {
      ERR_clear_error();
      size_t read = 0;
      const int result = SSL_read_ex(ssl_.get(), to, size, &read);
      if (result == 1) return read;
      const int error = SSL_get_error(ssl_.get(), result);
      if (error != SSL_ERROR_WANT_READ) {
        failure_ = Failure(error);
        if (before == 0) return failure_;
        return 0;
      }
      if (++refills_ > kRefillsPerRead) return 0;
      const absl::StatusOr<uint64_t> received = Refill(socket);
      if (!received.ok() && before == 0) return received;
      if (!received.ok() || *received == 0) return 0;
    }
  }

  // More for OpenSSL, once it has used up what there was.
  absl::StatusOr<uint64_t> Refill(int socket) {
    const size_t left = bytes_.in_end - bytes_.in_begin;
    if (left > 0) return left;
    bytes_.in_begin = bytes_.in_end = 0;
    BATON_ASSIGN_OR_RETURN(const uint64_t n,
                           ReceivedBytes(recv(socket, bytes_.in.data(),
                                              bytes_.in.size(), MSG_DONTWAIT)));
    bytes_.in_end = n;
    return n;
  }

  // As much as the socket takes.
  absl::Status SendOut(int socket) {
    while (!bytes_.sent()) {
      BATON_ASSIGN_OR_RETURN(
          const uint64_t n,
          SentBytes(send(socket, bytes_.out.data() + bytes_.out_begin,
                         bytes_.out.size() - bytes_.out_begin,
                         MSG_DONTWAIT | MSG_NOSIGNAL)));
      if (n == 0) break;
      bytes_.out_begin += n;
    }
    if (bytes_.sent()) {
      bytes_.out.clear();
      bytes_.out_begin = 0;
    } else if (bytes_.out.size() - bytes_.out_begin > kMaxUnsentBytes) {
      return absl::UnavailableError(
          "TLS: the peer asks for more answers than it takes");
    }
    return absl::OkStatus();
  }

  const TlsSide side_;
  const uint64_t records_per_key_;
  Ciphertext bytes_;
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  uint64_t records_ = 0;  // written
  // Not OK: what the next Read says, as bytes came before it.
  absl::Status failure_;
  int refills_ = 0;  // of the Read that is under way
  // Whether the last Read ended for want of room.
  bool stopped_full_ = false;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ssl_ctx_st>> MakeMemberContext(
    const tls::PemContents& contents) {
  if (contents.client_ca.empty()) {
    return absl::InvalidArgumentError("TLS: members of a cluster need its CA");
  }
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  if (context == nullptr) {
    return absl::InternalError(tls::TlsErrorText("TLS: no context"));
  }
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  // The fastest first where the CPU has instructions for AES; 128 bits are
  // enough.
  if (SSL_CTX_set_ciphersuites(context.get(),
                               "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                               "TLS_CHACHA20_POLY1305_SHA256") != 1) {
    return absl::InternalError(tls::TlsErrorText("TLS: no ciphers"));
  }
  BATON_RETURN_IF_ERROR(tls::UseCertificate(contents, context.get()));
  BATON_RETURN_IF_ERROR(
      tls::RequirePeerCertificates(contents.client_ca, context.get()));
  return context;
}

std::unique_ptr<TcpStream> MakeTlsStream(ssl_ctx_st* context, TlsSide side,
                                         uint64_t records_per_key) {
  return std::make_unique<TlsStream>(context, side, records_per_key);
}

}  // namespace baton::kv_transfer
