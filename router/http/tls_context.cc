#include "router/http/tls_context.h"

#include <openssl/ssl.h>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "common/tls/tls_context.h"

namespace baton::router::http {
namespace {

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
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()),
                                   SSL_CTX_free);
  if (context == nullptr) {
    return absl::InternalError(tls::TlsErrorText("TLS: no context"));
  }
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
  BATON_RETURN_IF_ERROR(tls::UseCertificate(contents, context.get()));
  if (!contents.client_ca.empty()) {
    BATON_RETURN_IF_ERROR(
        tls::RequirePeerCertificates(contents.client_ca, context.get()));
  }
  return context;
}

}  // namespace baton::router::http
