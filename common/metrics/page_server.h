// The small HTTP server of a process's metrics port: a few pages, each made
// anew for every GET. Not for clients: no TLS, no keys, no bodies.
//
// Start and the end are for one thread. A page's function is called on the
// server's threads, at most two calls at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_context;

namespace baton::metrics {

struct Page {
  // HTTP status.
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

using MakePage = std::function<Page()>;

class PageServer final {
 public:
  // Serves `pages`, by their path such as "/metrics", on "host:port" (port 0
  // takes a free one) until the object dies. Other paths are 404, other methods
  // than GET 405. Unavailable when the address cannot be bound, naming it.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(
      const std::string& address, std::map<std::string, MakePage> pages);
  // Ends the server; blocks for a few milliseconds.
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  // Where it listens.
  int port() const { return port_; }

 private:
  explicit PageServer(std::map<std::string, MakePage> pages);

  const std::map<std::string, MakePage> pages_;
  mg_context* context_ = nullptr;
  std::string host_;
  int port_ = 0;
};

}  // namespace baton::metrics
