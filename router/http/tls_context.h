// The TLS side of the HTTP server: from PEM text to an OpenSSL context, made
// anew when the files change. TLS 1.2 and later, ALPN "http/1.1".
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/tls/pem_files.h"

struct ssl_ctx_st;

namespace baton::router::http {

// The context of a server. InvalidArgument when a text is no PEM, or the key is
// not the certificate's. With a client_ca, clients must show a certificate that
// it signed. Any thread.
absl::StatusOr<std::shared_ptr<ssl_ctx_st>> MakeTlsContext(
    const tls::PemContents& contents);

class TlsContexts final {
 public:
  // The errors of MakeTlsContext.
  static absl::StatusOr<std::unique_ptr<TlsContexts>> Create(
      std::shared_ptr<tls::PemFiles> files);

  // The context for a new connection: of the files as they are, or, when those
  // are broken, of the last good ones (which is logged). Any thread.
  std::shared_ptr<ssl_ctx_st> Get() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  TlsContexts(std::shared_ptr<tls::PemFiles> files, uint64_t version,
              std::shared_ptr<ssl_ctx_st> context);

  const std::shared_ptr<tls::PemFiles> files_;

  absl::Mutex mu_;
  uint64_t tried_version_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<ssl_ctx_st> context_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::router::http
