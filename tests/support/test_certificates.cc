#include "tests/support/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/tls/openssl_setup.h"

namespace baton::test {
namespace {

constexpr long kLongAgo = -3600;

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using BioPtr = std::unique_ptr<BIO, FreeBio>;

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string ToPem(X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  CHECK_EQ(PEM_write_bio_X509(bio.get(), certificate), 1);
  return Text(bio.get());
}

std::string ToPem(EVP_PKEY* key) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  CHECK_EQ(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0,
                                    nullptr, nullptr),
           1);
  return Text(bio.get());
}

void Extend(X509* certificate, X509* issuer, int nid,
            const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension =
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  CHECK(extension != nullptr) << value;
  CHECK_EQ(X509_add_ext(certificate, extension, -1), 1);
  X509_EXTENSION_free(extension);
}

}  // namespace

TestCa::TestCa(const std::string& name) {
  // As programs do in main; a test with TLS makes its authority first.
  tls::KeepOpenSslAtExit();
  key_.reset(EVP_EC_gen("P-256"));
  CHECK(key_ != nullptr);
  self_ = Sign(key_.get(), name, "", absl::Hours(1));
  certificate_ = ToPem(self_.get());
}

CertificateAndKey TestCa::Issue(const Subject& subject) {
  const KeyPtr key(EVP_EC_gen("P-256"));
  CHECK(key != nullptr);
  const X509Ptr certificate =
      Sign(key.get(), subject.name, subject.hosts, subject.valid_for);
  return {ToPem(certificate.get()), ToPem(key.get())};
}

TestCa::X509Ptr TestCa::Sign(EVP_PKEY* key, const std::string& name,
                             const std::string& hosts,
                             absl::Duration valid_for) {
  const bool is_ca = self_ == nullptr;
  X509Ptr certificate(X509_new());
  X509* const raw = certificate.get();
  CHECK(raw != nullptr);
  X509_set_version(raw, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(raw), ++last_serial_);
  X509_gmtime_adj(X509_getm_notBefore(raw), 2 * kLongAgo);
  X509_gmtime_adj(X509_getm_notAfter(raw),
                  static_cast<long>(absl::ToInt64Seconds(valid_for)));
  X509_set_pubkey(raw, key);
  X509_NAME* const subject = X509_get_subject_name(raw);
  X509_NAME_add_entry_by_txt(
      subject, "CN", MBSTRING_UTF8,
      reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509* const issuer = is_ca ? raw : self_.get();
  X509_set_issuer_name(raw, X509_get_subject_name(issuer));
  Extend(raw, issuer, NID_basic_constraints,
         is_ca ? "critical,CA:TRUE" : "critical,CA:FALSE");
  if (is_ca) Extend(raw, issuer, NID_key_usage, "critical,keyCertSign");
  if (!hosts.empty()) Extend(raw, issuer, NID_subject_alt_name, hosts);
  CHECK_GT(X509_sign(raw, key_.get(), EVP_sha256()), 0);
  return certificate;
}

void WriteFileAtOnce(const std::string& path, const std::string& text) {
  const std::string draft = absl::StrCat(path, ".draft");
  {
    std::ofstream out(draft, std::ios::binary);
    out << text;
    CHECK(out.good()) << draft;
  }
  std::filesystem::rename(draft, path);
}

void WriteClusterTls(const std::string& dir, const std::string& ca,
                     const CertificateAndKey& own) {
  std::filesystem::create_directories(dir);
  WriteFileAtOnce(absl::StrCat(dir, "/ca.pem"), ca);
  WriteFileAtOnce(absl::StrCat(dir, "/cert.pem"), own.certificate);
  WriteFileAtOnce(absl::StrCat(dir, "/key.pem"), own.key);
}

std::shared_ptr<tls::PemFiles> ClusterMembers::Files(
    const TestCa::Subject& subject, const Clock* clock) {
  const std::string dir = absl::StrCat(scratch_.path(), "/", ++members_);
  WriteClusterTls(dir, ca_.certificate(), ca_.Issue(subject));
  auto files = tls::PemFiles::Open(tls::ClusterPaths(dir), clock);
  CHECK(files.ok()) << files.status();
  return *std::move(files);
}

}  // namespace baton::test
