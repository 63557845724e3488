#include "common/tls/pem_files.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/x509.h>

#include <ctime>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/tls/pem_text.h"

namespace baton::tls {
namespace {

// A bundle of all public CAs has a quarter of this.
constexpr int64_t kMaxFileBytes = 1 << 20;

absl::Time ExpiryOf(const X509& certificate) {
  std::tm time = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &time) != 1) {
    return absl::InfiniteFuture();
  }
  return absl::FromTM(time, absl::UTCTimeZone());
}

absl::StatusOr<PemContents> Read(const PemPaths& paths) {
  PemContents contents;
  BATON_ASSIGN_OR_RETURN(contents.certificate_chain,
                         ReadSmallFile(paths.certificate, kMaxFileBytes));
  BATON_ASSIGN_OR_RETURN(contents.private_key,
                         ReadSmallFile(paths.key, kMaxFileBytes));
  BATON_ASSIGN_OR_RETURN(
      const std::vector<X509Ptr> chain,
      ParseCertificates(contents.certificate_chain, paths.certificate));
  BATON_ASSIGN_OR_RETURN(const KeyPtr key,
                         ParseKey(contents.private_key, paths.key));
  const bool fits = X509_check_private_key(chain.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("the key in ", paths.key,
                     " does not fit the certificate in ", paths.certificate));
  }
  contents.expires = ExpiryOf(*chain.front());
  if (!paths.client_ca.empty()) {
    BATON_ASSIGN_OR_RETURN(contents.client_ca,
                           ReadSmallFile(paths.client_ca, kMaxFileBytes));
    BATON_RETURN_IF_ERROR(
        CheckCertificates(contents.client_ca, paths.client_ca));
  }
  return contents;
}

void LogWhatIsUsed(const PemPaths& paths, const PemContents& contents) {
  const std::string expires = absl::FormatTime(
      "%Y-%m-%d %H:%M UTC", contents.expires, absl::UTCTimeZone());
  if (contents.expires <= absl::Now()) {
    LOG(WARNING) << "the certificate in " << paths.certificate
                 << " has ended on " << expires << ": peers will not accept it";
  } else {
    LOG(INFO) << "using the certificate in " << paths.certificate
              << ", which ends on " << expires;
  }
}

std::vector<std::string> Names(const PemPaths& paths) {
  std::vector<std::string> names = {paths.certificate, paths.key};
  if (!paths.client_ca.empty()) names.push_back(paths.client_ca);
  return names;
}

}  // namespace

PemPaths ClusterPaths(const std::string& dir) {
  return {.certificate = absl::StrCat(dir, "/cert.pem"),
          .key = absl::StrCat(dir, "/key.pem"),
          .client_ca = absl::StrCat(dir, "/ca.pem")};
}

absl::Status CheckCertificates(const std::string& pem,
                               const std::string& name) {
  return ParseCertificates(pem, name).status();
}

PemFiles::PemFiles(PemPaths paths, WatchedFiles watched, PemContents contents)
    : paths_(std::move(paths)),
      watched_(std::move(watched)),
      contents_(std::make_shared<const PemContents>(std::move(contents))) {}

absl::StatusOr<std::shared_ptr<PemFiles>> PemFiles::Open(PemPaths paths,
                                                         const Clock* clock) {
  // Looks before it reads: what changes meanwhile is read again.
  WatchedFiles watched(Names(paths), clock);
  BATON_ASSIGN_OR_RETURN(PemContents contents, Read(paths));
  contents.version = 1;
  LogWhatIsUsed(paths, contents);
  return std::shared_ptr<PemFiles>(
      new PemFiles(std::move(paths), std::move(watched), std::move(contents)));
}

std::shared_ptr<const PemContents> PemFiles::Get() {
  absl::MutexLock lock(&mu_);
  if (!watched_.Changed()) return contents_;
  absl::StatusOr<PemContents> contents = Read(paths_);
  if (!contents.ok()) {
    LOG(WARNING) << "keeping the certificate of before: "
                 << contents.status().message();
    if (MayReadLater(contents.status())) watched_.LookAgain();
    return contents_;
  }
  contents->version = contents_->version + 1;
  LogWhatIsUsed(paths_, *contents);
  contents_ = std::make_shared<const PemContents>(*std::move(contents));
  return contents_;
}

}  // namespace baton::tls
