#include "router/http/intake_pool.h"

#include <optional>
#include <utility>

#include "common/log.h"

namespace baton::router::http {
namespace {

// A request that waits for its thread. Any thread.
class WaitingRequest final {
 public:
  explicit WaitingRequest(Request request) : request_(std::move(request)) {}

  // Nothing when it was taken before.
  std::optional<Request> Take() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return std::exchange(request_, std::nullopt);
  }

 private:
  absl::Mutex mu_;
  std::optional<Request> request_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

IntakePool::IntakePool(int num_threads, size_t max_queued)
    : max_queued_(max_queued) {
  CHECK_GE(num_threads, 1);
  CHECK_GE(max_queued, 1u);
  threads_.reserve(num_threads);
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

IntakePool::~IntakePool() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

bool IntakePool::TryServe(Request request, std::shared_ptr<Responder> responder,
                          Work work) {
  const auto waiting = std::make_shared<WaitingRequest>(std::move(request));
  // Before the work can ask for itself.
  responder->OnGone([waiting] { waiting->Take(); });
  absl::MutexLock lock(&mu_);
  if (closed_ || queue_.size() >= max_queued_) return false;
  queue_.push_back(
      [waiting, responder = std::move(responder), work = std::move(work)] {
        const std::optional<Request> mine = waiting->Take();
        if (mine.has_value()) work(*mine, responder);
      });
  return true;
}

void IntakePool::Run() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &IntakePool::Ready));
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace baton::router::http
