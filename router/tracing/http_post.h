// Posts bodies to one URL, over a connection that is kept.
//
// One thread but for Cancel. Post blocks, never longer than its timeout.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::router::tracing {

class HttpPost final {
 public:
  struct Options {
    std::string url;  // http or https
    // With the content's type.
    std::vector<std::pair<std::string, std::string>> headers;
    // PEM file; empty: the system's CAs.
    std::string ca_file;
    // Of an answer's body; the rest is not kept.
    size_t max_answer_bytes = 64 << 10;
  };

  struct Result {
    // 0: there was no answer; `error` says why.
    int status = 0;
    std::string error;
    std::string body;
    // The server's wish, from Retry-After in seconds.
    std::optional<absl::Duration> retry_after;
  };

  explicit HttpPost(const Options& options);
  ~HttpPost();
  HttpPost(const HttpPost&) = delete;
  HttpPost& operator=(const HttpPost&) = delete;

  Result Post(const std::string& body, absl::Duration timeout);

  // From now on no Post lasts beyond `deadline` (monotonic). Any thread.
  void Cancel(absl::Time deadline);

 private:
  class Handles;

  const Options options_;
  const std::unique_ptr<Handles> handles_;
  // Monotonic nanoseconds.
  std::atomic<int64_t> cancel_at_;
};

}  // namespace baton::router::tracing
