// POSTs that are open at once, and their ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "batch/request_file.h"
#include "batch/result_file.h"

namespace baton::batch {

enum class CallEndKind {
  kAnswered,   // with any status
  kBroke,      // no connection, or one that broke off: another try may do
  kGivenUp,    // not to be tried again
  kRefusedUs,  // nor is any other: the server's certificate, or our own
};

struct CallEnd {
  int64_t call = 0;  // as Start was told
  CallEndKind kind = CallEndKind::kAnswered;
  BatchAnswer answer;
  // When the server wants to be asked again.
  std::optional<absl::Duration> retry_after;
};

// One thread.
class Calls {
 public:
  virtual ~Calls() = default;

  // `call` is none that is open.
  virtual void Start(int64_t call, const BatchRequest& request) = 0;

  // What has ended; waits for the first, no longer than `timeout`, and possibly
  // less long.
  virtual std::vector<CallEnd> Wait(absl::Duration timeout) = 0;
};

struct HttpCallsOptions {
  // "http://HOST:PORT" or https, or with a path before "/v1".
  std::string url;
  std::string api_key;  // empty: not sent
  // PEM files; empty: the system's authorities, no certificate of our own.
  std::string tls_ca_file;
  std::string tls_cert_file;
  std::string tls_key_file;
  // Of all requests (x-baton-priority); nothing: not sent.
  std::optional<int32_t> priority;
  // Of each call.
  absl::Duration timeout = absl::Hours(1);
  // Connections at once.
  int32_t max_connections = 64;
};

// To a server of the OpenAI API, over connections that are kept; of Baton's
// class "batch" (x-baton-class). InvalidArgument when the URL is none. Calls
// that are open when it goes are given up, and their connections closed.
absl::StatusOr<std::unique_ptr<Calls>> CreateHttpCalls(
    const HttpCallsOptions& options);

}  // namespace baton::batch
