#include "router/http/intake_pool.h"

#include <utility>

#include "common/log.h"

namespace baton::router::http {

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

bool IntakePool::TryRun(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  if (closed_ || queue_.size() >= max_queued_) return false;
  queue_.push_back(std::move(work));
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
