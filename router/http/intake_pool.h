// A few threads for what would keep a thread of the HTTP server from its other
// connections: parsing and tokenizing long prompts.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/http/http_message.h"

namespace baton::router::http {

class IntakePool final {
 public:
  using Work = std::function<void(const Request& request,
                                  const std::shared_ptr<Responder>& responder)>;

  // REQUIRES: both at least 1.
  IntakePool(int num_threads, size_t max_queued);
  // Does what is queued, then ends.
  ~IntakePool();
  IntakePool(const IntakePool&) = delete;
  IntakePool& operator=(const IntakePool&) = delete;

  // Calls `work` with the rest on one of the threads, unless the client leaves
  // before: then the request is let go of at once, and `work` is not called.
  // Any thread, never blocks. False when the queue is full: nothing happens,
  // and the request is lost. Takes the responder's OnGone until `work` does.
  [[nodiscard]] bool TryServe(Request request,
                              std::shared_ptr<Responder> responder, Work work)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || !queue_.empty();
  }

  const size_t max_queued_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace baton::router::http
