// What the threads of one HTTP server share. Without Asio, which takes seconds
// to compile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/http/body_budget.h"
#include "router/http/http_message.h"
#include "router/http/http_metrics.h"
#include "router/http/http_server.h"

namespace baton::router::http {

// How many connections a server has. Any thread.
class OpenConnections final {
 public:
  // False when there are `max` already.
  bool Enter(int64_t max) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until there are none; false when the time is up.
  bool AwaitNone(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool None() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return open_ == 0; }

  absl::Mutex mu_;
  int64_t open_ ABSL_GUARDED_BY(mu_) = 0;
};

struct ServerState {
  ServerState(const HttpServer::Options& given, Handler* the_handler)
      : options(given),
        handler(the_handler),
        metrics(given.metrics),
        bodies(std::make_shared<BodyBudget>(given.max_body_bytes_total)) {}

  const HttpServer::Options options;
  Handler* const handler;
  HttpMetrics metrics;
  OpenConnections open;
  // Requests may outlive the server.
  const std::shared_ptr<BodyBudget> bodies;
  // Listens on a loopback address. Set before the threads run.
  bool loopback = false;
  // No request after the ones that have begun.
  std::atomic<bool> draining{false};
};

}  // namespace baton::router::http
