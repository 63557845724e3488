#include "common/tls/pem_text.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::tls {
namespace {

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using BioPtr = std::unique_ptr<BIO, FreeBio>;

// Without this, OpenSSL would ask on the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

BioPtr Reader(const std::string& pem) {
  BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  CHECK(bio != nullptr);
  return bio;
}

}  // namespace

absl::StatusOr<std::vector<X509Ptr>> ParseCertificates(
    const std::string& pem, const std::string& name) {
  // What stays in OpenSSL's queue of this thread would be taken for an error
  // of the connection that it serves next.
  ERR_clear_error();
  const auto clear = absl::MakeCleanup([] { ERR_clear_error(); });
  const BioPtr bio = Reader(pem);
  std::vector<X509Ptr> certificates;
  while (X509* certificate =
             PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)) {
    certificates.emplace_back(certificate);
  }
  const unsigned long error = ERR_peek_last_error();
  const bool at_end = ERR_GET_LIB(error) == ERR_LIB_PEM &&
                      ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  if (!at_end) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": certificate ", certificates.size() + 1,
                     " is not a PEM certificate"));
  }
  if (certificates.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has no PEM certificate"));
  }
  return certificates;
}

absl::StatusOr<KeyPtr> ParseKey(const std::string& pem,
                                const std::string& name) {
  ERR_clear_error();
  const auto clear = absl::MakeCleanup([] { ERR_clear_error(); });
  const BioPtr bio = Reader(pem);
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " has no PEM private key (one with a password cannot be used)"));
  }
  return key;
}

}  // namespace baton::tls
