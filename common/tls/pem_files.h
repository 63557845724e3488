// A certificate with its key, and optionally the CA whose certificates peers
// must show: PEM files, checked when they are read, and read anew when they
// change. Who offers TLS or asks for it takes what is current for each new
// connection; connections that are there keep what they began with.
//
// Any thread. Never logs a key.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/watched_files.h"

namespace baton::tls {

// File names.
struct PemPaths {
  std::string certificate;  // the process's own, first, and its chain
  std::string key;
  std::string client_ca;  // empty: peers need no certificate
};

// cert.pem, key.pem and ca.pem in the folder of --cluster-tls.
PemPaths ClusterPaths(const std::string& dir);

// PEM text that was checked.
struct PemContents {
  std::string certificate_chain;
  std::string private_key;
  std::string client_ca;
  // When the process's own certificate ends.
  absl::Time expires;
  // Counts up from 1 with each set that was read.
  uint64_t version = 0;
};

class PemFiles final {
 public:
  // Errors name the file: one that cannot be read, is no PEM of its kind, or a
  // key that does not fit the certificate. `clock` outlives the object.
  static absl::StatusOr<std::shared_ptr<PemFiles>> Open(
      PemPaths paths, const Clock* clock = Clock::Monotonic());

  // Looks for changes at most once a second. A set that is broken, or only
  // half written, leaves the one before in force; a warning says so once for
  // each change. Reads files when they have changed, otherwise only a lock.
  std::shared_ptr<const PemContents> Get() ABSL_LOCKS_EXCLUDED(mu_);

  const PemPaths& paths() const { return paths_; }

 private:
  PemFiles(PemPaths paths, WatchedFiles watched, PemContents contents);

  const PemPaths paths_;

  absl::Mutex mu_;
  WatchedFiles watched_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const PemContents> contents_ ABSL_GUARDED_BY(mu_);
};

// Whether the text has at least one certificate and nothing broken. Errors
// call it `name`.
absl::Status CheckCertificates(const std::string& pem, const std::string& name);

}  // namespace baton::tls
