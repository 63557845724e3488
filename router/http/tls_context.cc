#include "router/http/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::router::http {
namespace {

using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

// `what` and OpenSSL's reason, which names no part of a key.
absl::Status TlsError(absl::string_view what) {
  const unsigned long code = ERR_get_error();
  const char* const reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat("TLS: ", what, reason == nullptr ? "" : ": ",
                   reason == nullptr ? "" : reason));
}

BioPtr Open(const std::string& pem) {
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                BIO_free);
}

// Keys with a password are refused instead of asked for on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

// All certificates of a PEM text. `what` names it in errors.
absl::StatusOr<std::vector<X509Ptr>> ReadCertificates(const std::string& pem,
                                                      absl::string_view what) {
  const BioPtr bio = Open(pem);
  std::vector<X509Ptr> certificates;
  while (X509* one =
             PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)) {
    certificates.emplace_back(one, X509_free);
  }
  // The end of the text is an error of its own kind.
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) {
    return TlsError(absl::StrCat("cannot read the ", what));
  }
  ERR_clear_error();
  if (certificates.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS: the ", what, " holds no certificate"));
  }
  return certificates;
}

absl::Status UseCertificate(const tls::PemContents& contents,
                            SSL_CTX* context) {
  BATON_ASSIGN_OR_RETURN(
      std::vector<X509Ptr> chain,
      ReadCertificates(contents.certificate_chain, "certificate file"));
  if (SSL_CTX_use_certificate(context, chain[0].get()) != 1) {
    return TlsError("cannot use the certificate");
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) {
      return TlsError("cannot use the certificate's chain");
    }
  }
  const BioPtr bio = Open(contents.private_key);
  const KeyPtr key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr),
      EVP_PKEY_free);
  if (key == nullptr) return TlsError("cannot read the key file");
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return TlsError("the key is not the certificate's");
  }
  return absl::OkStatus();
}

absl::Status RequireClientCertificates(const std::string& client_ca,
                                       SSL_CTX* context) {
  BATON_ASSIGN_OR_RETURN(const std::vector<X509Ptr> authorities,
                         ReadCertificates(client_ca, "client CA file"));
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  for (const X509Ptr& authority : authorities) {
    if (X509_STORE_add_cert(store, authority.get()) != 1 ||
        SSL_CTX_add_client_CA(context, authority.get()) != 1) {
      return TlsError("cannot use the client CA");
    }
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                     nullptr);
  // A resumed session would not show its certificate again.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);
  return absl::OkStatus();
}

int SelectHttp11(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                 const unsigned char* offered, unsigned int offered_size,
                 void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* match = nullptr;
  if (SSL_select_next_proto(&match, chosen_size, kOurs, sizeof(kOurs) - 1,
                            offered, offered_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *chosen = match;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ssl_ctx_st>> MakeTlsContext(
    const tls::PemContents& contents) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()),
                                   SSL_CTX_free);
  if (context == nullptr) return TlsError("no context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION |
                                         SSL_OP_NO_COMPRESSION |
                                         SSL_OP_IGNORE_UNEXPECTED_EOF |
                                         SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Idle streams give their buffers back; writes as StreamSocket does them.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS |
                                      SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(context.get(), SelectHttp11, nullptr);
  BATON_RETURN_IF_ERROR(UseCertificate(contents, context.get()));
  if (!contents.client_ca.empty()) {
    BATON_RETURN_IF_ERROR(
        RequireClientCertificates(contents.client_ca, context.get()));
  }
  return context;
}

absl::StatusOr<std::unique_ptr<TlsContexts>> TlsContexts::Create(
    std::shared_ptr<tls::PemFiles> files) {
  const std::shared_ptr<const tls::PemContents> contents = files->Get();
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<ssl_ctx_st> context,
                         MakeTlsContext(*contents));
  return std::unique_ptr<TlsContexts>(
      new TlsContexts(std::move(files), contents->version, std::move(context)));
}

TlsContexts::TlsContexts(std::shared_ptr<tls::PemFiles> files, uint64_t version,
                         std::shared_ptr<ssl_ctx_st> context)
    : files_(std::move(files)),
      tried_version_(version),
      context_(std::move(context)) {}

std::shared_ptr<ssl_ctx_st> TlsContexts::Get() {
  const std::shared_ptr<const tls::PemContents> contents = files_->Get();
  absl::MutexLock lock(&mu_);
  if (contents->version == tried_version_) return context_;
  tried_version_ = contents->version;
  absl::StatusOr<std::shared_ptr<ssl_ctx_st>> made = MakeTlsContext(*contents);
  if (made.ok()) {
    context_ = *std::move(made);
    LOG(INFO) << "the HTTP server's certificate was reloaded";
  } else {
    LOG(ERROR) << "the HTTP server keeps its old certificate: "
               << made.status();
  }
  return context_;
}

}  // namespace baton::router::http
