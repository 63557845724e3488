#include "common/tls/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/tls/pem_text.h"

namespace baton::tls {
namespace {

absl::Status TlsError(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("TLS: ", TlsErrorText(what)));
}

}  // namespace

std::string TlsErrorText(absl::string_view what) {
  const char* const reason = ERR_reason_error_string(ERR_peek_error());
  ERR_clear_error();
  return reason == nullptr ? std::string(what)
                           : absl::StrCat(what, ": ", reason);
}

absl::Status UseCertificate(const PemContents& contents, ssl_ctx_st* context) {
  ERR_clear_error();
  BATON_ASSIGN_OR_RETURN(std::vector<X509Ptr> chain,
                         ParseCertificates(contents.certificate_chain,
                                           "TLS: the certificate file"));
  if (SSL_CTX_use_certificate(context, chain[0].get()) != 1) {
    return TlsError("cannot use the certificate");
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) {
      return TlsError("cannot use the certificate's chain");
    }
  }
  BATON_ASSIGN_OR_RETURN(const KeyPtr key,
                         ParseKey(contents.private_key, "TLS: the key file"));
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return TlsError("the key is not the certificate's");
  }
  return absl::OkStatus();
}

absl::Status RequirePeerCertificates(const std::string& ca,
                                     ssl_ctx_st* context) {
  BATON_ASSIGN_OR_RETURN(const std::vector<X509Ptr> authorities,
                         ParseCertificates(ca, "TLS: the CA file"));
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  for (const X509Ptr& authority : authorities) {
    if (X509_STORE_add_cert(store, authority.get()) != 1 ||
        SSL_CTX_add_client_CA(context, authority.get()) != 1) {
      return TlsError("cannot use the CA");
    }
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                     nullptr);
  // A resumed session would not show its certificate again.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TlsContexts>> TlsContexts::Create(
    std::shared_ptr<PemFiles> files, Make make, std::string whose) {
  const std::shared_ptr<const PemContents> contents = files->Get();
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<ssl_ctx_st> context, make(*contents));
  return std::unique_ptr<TlsContexts>(
      new TlsContexts(std::move(files), std::move(make), std::move(whose),
                      contents->version, std::move(context)));
}

TlsContexts::TlsContexts(std::shared_ptr<PemFiles> files, Make make,
                         std::string whose, uint64_t version,
                         std::shared_ptr<ssl_ctx_st> context)
    : files_(std::move(files)),
      make_(std::move(make)),
      whose_(std::move(whose)),
      tried_version_(version),
      context_(std::move(context)) {}

std::shared_ptr<ssl_ctx_st> TlsContexts::Get() {
  const std::shared_ptr<const PemContents> contents = files_->Get();
  absl::MutexLock lock(&mu_);
  if (contents->version == tried_version_) return context_;
  tried_version_ = contents->version;
  absl::StatusOr<std::shared_ptr<ssl_ctx_st>> made = make_(*contents);
  if (made.ok()) {
    context_ = *std::move(made);
    LOG(INFO) << whose_ << "'s certificate was reloaded";
  } else {
    LOG(ERROR) << whose_ << " keeps its old certificate: " << made.status();
  }
  return context_;
}

}  // namespace baton::tls
