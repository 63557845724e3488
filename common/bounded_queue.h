// A bounded queue with many writers and one reader: how gRPC threads, timers
// and the transport hand work to a loop.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/log.h"

namespace baton {

// All functions may be called from any thread. Never blocks a writer: a full
// queue refuses, and the writer passes the refusal on (backpressure).
template <typename T>
class BoundedQueue final {
 public:
  // `notify`, if any, is called by the writer after each push and each Wake,
  // without a lock: for a reader that waits elsewhere.
  explicit BoundedQueue(size_t capacity, std::function<void()> notify = nullptr)
      : capacity_(capacity), notify_(std::move(notify)) {
    CHECK_GT(capacity, 0u);
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // False when the queue is full or closed; `item` is then untouched.
  [[nodiscard]] bool TryPush(T&& item) ABSL_LOCKS_EXCLUDED(mu_) {
    return Push(std::move(item), capacity_);
  }

  // Pushes past the bound. Only for what cannot be refused and is bounded
  // elsewhere: the end of something whose start was admitted. False when
  // closed.
  bool PushUnbounded(T&& item) ABSL_LOCKS_EXCLUDED(mu_) {
    return Push(std::move(item), std::numeric_limits<size_t>::max());
  }

  // Takes everything that is there, in order; waits up to `timeout` for the
  // first item. Empty on time-out, on Wake() and when closed and drained.
  std::vector<T> DrainFor(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (timeout > absl::ZeroDuration()) {
      mu_.AwaitWithTimeout(absl::Condition(this, &BoundedQueue::Readable),
                           timeout);
    }
    woken_ = false;
    std::vector<T> out;
    out.swap(items_);
    return out;
  }

  // Ends one wait of DrainFor, now or the next one.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      woken_ = true;
    }
    if (notify_) notify_();
  }

  // Refuses all later pushes and wakes the reader. What is queued stays.
  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }

  size_t size() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return items_.size();
  }

 private:
  bool Push(T&& item, size_t most) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (closed_ || items_.size() >= most) return false;
      items_.push_back(std::move(item));
    }
    if (notify_) notify_();
    return true;
  }

  bool Readable() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !items_.empty() || woken_ || closed_;
  }

  const size_t capacity_;
  const std::function<void()> notify_;
  mutable absl::Mutex mu_;
  std::vector<T> items_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace baton
