// What is in PEM text, as OpenSSL has it. For this folder. Any thread; nothing
// stays in OpenSSL's queue of errors.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::tls {

struct FreeOfOpenSsl {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using X509Ptr = std::unique_ptr<X509, FreeOfOpenSsl>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreeOfOpenSsl>;

// At least one. InvalidArgument calls the text `name`, and says what is no
// certificate.
absl::StatusOr<std::vector<X509Ptr>> ParseCertificates(const std::string& pem,
                                                       const std::string& name);

// InvalidArgument calls the text `name`; so with one that has a password.
absl::StatusOr<KeyPtr> ParseKey(const std::string& pem,
                                const std::string& name);

}  // namespace baton::tls
