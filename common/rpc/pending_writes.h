// The messages that wait for their turn on one gRPC stream: a reactor may have
// one write in flight, so whoever wants to send queues here.
//
//   Send(m):       if (pending.Push(m) == kStart) StartWrite(pending.front())
//   OnWriteDone(): if (const M* next = pending.Done()) StartWrite(next)
//
// All functions may be called from any thread. Knows no gRPC.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"

namespace baton::rpc {

template <typename Message>
class PendingWrites final {
 public:
  enum class PushResult {
    kStart,   // the caller starts a write of *InFlight()
    kQueued,  // a write is under way; this message follows by itself
    kFull,    // refused: the bound is reached
    kClosed,  // refused: the stream is ending
  };

  explicit PendingWrites(size_t capacity) : capacity_(capacity) {}

  PushResult Push(Message message) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_) return PushResult::kClosed;
    if (queue_.size() >= capacity_) return PushResult::kFull;
    queue_.push_back(std::move(message));
    if (writing_) return PushResult::kQueued;
    writing_ = true;
    return PushResult::kStart;
  }

  // The message to write. Its address is stable until Done().
  // REQUIRES: a write is under way.
  const Message* InFlight() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    CHECK(writing_ && !queue_.empty());
    return &queue_.front();
  }

  // The write of InFlight() ended. The next message to write, or null.
  const Message* Done() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    CHECK(writing_ && !queue_.empty());
    queue_.pop_front();
    if (!queue_.empty()) return &queue_.front();
    writing_ = false;
    return nullptr;
  }

  // Refuses later pushes; what is queued is still written. True when nothing
  // is under way, so that the caller ends the stream itself; otherwise the
  // write that empties the queue does.
  bool Close() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    return !writing_;
  }

  // How many wait, the one in flight included.
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return queue_.size();
  }

  bool closed() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

 private:
  const size_t capacity_;
  mutable absl::Mutex mu_;
  // A deque: push_back keeps the address of the front.
  std::deque<Message> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace baton::rpc
