// The HTTP server's OpenSSL context: TLS 1.2 and later, ALPN "http/1.1".
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/tls/pem_files.h"

struct ssl_ctx_st;

namespace baton::router::http {

// The context of a server. InvalidArgument when a text is no PEM, or the key is
// not the certificate's. With a client_ca, clients must show a certificate that
// it signed. Any thread.
absl::StatusOr<std::shared_ptr<ssl_ctx_st>> MakeTlsContext(
    const tls::PemContents& contents);

}  // namespace baton::router::http
