// An OpenAI-compatible server over HTTP, any of them: streams of
// POST /v1/completions, on connections that are kept and used again.
//
// One thread of its own does all of it; listeners are called there.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "load_generator/target.h"

namespace baton::load_generator {

struct HttpTargetOptions {
  // "http://HOST:PORT", or with a path before "/v1".
  std::string url;
  std::string model;
  // Sent as "authorization: Bearer KEY"; empty: not sent.
  std::string api_key;
};

// InvalidArgument when the URL cannot be used; Unavailable when its host is
// not known.
absl::StatusOr<std::unique_ptr<Target>> CreateHttpTarget(
    const HttpTargetOptions& options);

// The first model that the server at the URL lists (GET /v1/models). Waits, at
// most `timeout`. Unavailable when it does not answer, NotFound when it lists
// none.
absl::StatusOr<std::string> FirstModel(const std::string& url,
                                       const std::string& api_key,
                                       absl::Duration timeout);

}  // namespace baton::load_generator
