// Looks up the addresses of names.
//
// A seam: DNS in a router (router/discovery/dns_resolver.h), a table in tests.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::router {

class NameResolver {
 public:
  // "10.0.0.1" or "fd00::1", each once, at least one, sorted. NotFound: there
  // is no such name, or it has no addresses. Otherwise why nobody knows.
  using Answer = absl::StatusOr<std::vector<std::string>>;

  virtual ~NameResolver() = default;

  // Of each name, in order; blocks, at most `timeout` and not after Stop. One
  // thread at a time.
  virtual std::vector<Answer> Resolve(const std::vector<std::string>& names,
                                      absl::Duration timeout) = 0;

  // Ends Resolve soon, now and from now on. Any thread.
  virtual void Stop() = 0;
};

}  // namespace baton::router
