// From PEM text to OpenSSL's context of connections, made anew when the files
// change. What is common to all who offer TLS or ask for it by themselves;
// gRPC has its own (common/rpc/grpc_credentials.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/tls/pem_files.h"

struct ssl_ctx_st;

namespace baton::tls {

// `what` and the reason of the first error of OpenSSL on this thread, if there
// is one; its queue is empty then. Reasons name no part of a key.
std::string TlsErrorText(absl::string_view what);

// Gives the context the certificate, its chain and its key. InvalidArgument
// when a text is no PEM, or the key is not the certificate's.
absl::Status UseCertificate(const PemContents& contents, ssl_ctx_st* context);

// Only peers that show a certificate which `ca`, PEM text, signed are talked
// to. No session is resumed: it would not show one again. InvalidArgument as
// above.
absl::Status RequirePeerCertificates(const std::string& ca,
                                     ssl_ctx_st* context);

class TlsContexts final {
 public:
  using Make = std::function<absl::StatusOr<std::shared_ptr<ssl_ctx_st>>(
      const PemContents& contents)>;

  // `whose` certificate it is, for logs: "the HTTP server". The errors of
  // `make`.
  static absl::StatusOr<std::unique_ptr<TlsContexts>> Create(
      std::shared_ptr<PemFiles> files, Make make, std::string whose);

  // The context for a new connection: of the files as they are, or, when those
  // are broken, of the last good ones (which is logged). Any thread.
  std::shared_ptr<ssl_ctx_st> Get() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  TlsContexts(std::shared_ptr<PemFiles> files, Make make, std::string whose,
              uint64_t version, std::shared_ptr<ssl_ctx_st> context);

  const std::shared_ptr<PemFiles> files_;
  const Make make_;
  const std::string whose_;

  absl::Mutex mu_;
  uint64_t tried_version_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<ssl_ctx_st> context_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::tls
