// Certificates made in a test: a CA of its own, and what it signs. EC keys,
// which are made in a millisecond.
//
// One thread at a time.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/tls/pem_files.h"
#include "tests/support/scratch_dir.h"

namespace baton::test {

struct CertificateAndKey {
  std::string certificate;  // PEM
  std::string key;          // PEM
};

class TestCa final {
 public:
  // `name` is the CA's common name.
  explicit TestCa(const std::string& name);

  const std::string& certificate() const { return certificate_; }  // PEM

  struct Subject {
    std::string name = "baton";
    // As in openssl.cnf; empty: for no host at all.
    std::string hosts = "DNS:localhost,IP:127.0.0.1";
    absl::Duration valid_for = absl::Hours(1);  // negative: has ended
  };
  CertificateAndKey Issue(const Subject& subject);
  CertificateAndKey Issue() { return Issue(Subject()); }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using KeyPtr = std::unique_ptr<EVP_PKEY, Free>;
  using X509Ptr = std::unique_ptr<X509, Free>;

  // Signed by this CA, or by itself while there is none.
  X509Ptr Sign(EVP_PKEY* key, const std::string& name, const std::string& hosts,
               absl::Duration valid_for);

  int last_serial_ = 0;
  KeyPtr key_;
  X509Ptr self_;
  std::string certificate_;
};

// Writes a file so that no reader sees a part of it.
void WriteFileAtOnce(const std::string& path, const std::string& text);

// The folder of --cluster-tls.
void WriteClusterTls(const std::string& dir, const std::string& ca,
                     const CertificateAndKey& own);

// The files of members of a cluster, for as long as it lives.
class ClusterMembers final {
 public:
  explicit ClusterMembers(const std::string& ca_name = "cluster")
      : ca_(ca_name) {}

  TestCa& ca() { return ca_; }
  // Of a new member, whose certificate is for no host: workers move. `clock` is
  // the files'.
  std::shared_ptr<tls::PemFiles> Files(
      const Clock* clock = Clock::Monotonic()) {
    return Files({.hosts = ""}, clock);
  }
  std::shared_ptr<tls::PemFiles> Files(const TestCa::Subject& subject,
                                       const Clock* clock = Clock::Monotonic());

 private:
  TestCa ca_;
  ScratchDir scratch_;
  int members_ = 0;
};

}  // namespace baton::test
