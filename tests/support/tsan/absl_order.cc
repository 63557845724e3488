// Makes absl::Mutex, Notification and BlockingCounter known to ThreadSanitizer:
// Debian's Abseil is not built with it, so that TSan would see no lock and call
// every guarded member a race.
// Linked into each program of a TSan build; these definitions come before those of
// the shared library, which they call.
#include <utility>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/support/tsan/real_function.h"

// ThreadSanitizer asks this when a program begins: what libraries do that are
// not built with it is not looked at, wherever it is started.
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1";
}

namespace {

// The library's function of this mangled name.
template <typename Function>
Function* Real(const char* name) {
  return baton::testing::RealFunction<Function>(name);
}

// Whoever unlocks or waits evaluates the conditions of waiting threads, while
// the lock is held in truth but, as annotated, not by it: such reads are fine.
class IgnoreReads final {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

void Acquire(const void* address) {
  __tsan_acquire(const_cast<void*>(address));
}

// Calls `real`, which gives the lock up and takes it again.
template <typename Function, typename... Args>
auto Wait(absl::Mutex* mutex, Function* real, Args&&... args) {
  __tsan_release(mutex);
  struct Acquire {
    absl::Mutex* mutex;
    ~Acquire() { __tsan_acquire(mutex); }
  } acquire{mutex};
  IgnoreReads ignore;
  return real(std::forward<Args>(args)...);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const real = Real<void(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static auto* const real =
      Real<void(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_release(this);
  IgnoreReads ignore;
  real(this);
}

bool Mutex::TryLock() {
  static auto* const real =
      Real<bool(Mutex*)>("_ZN4absl7debian35Mutex7TryLockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static auto* const real =
      Real<void(Mutex*)>("_ZN4absl7debian35Mutex10ReaderLockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static auto* const real =
      Real<void(Mutex*)>("_ZN4absl7debian35Mutex12ReaderUnlockEv");
  __tsan_release(this);
  IgnoreReads ignore;
  real(this);
}

void Mutex::Await(const Condition& condition) {
  static auto* const real = Real<void(Mutex*, const Condition&)>(
      "_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE");
  Wait(this, real, this, condition);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Duration)>(
      "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_"
      "8DurationE");
  return Wait(this, real, this, condition, timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Time)>(
      "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  return Wait(this, real, this, condition, deadline);
}

void Mutex::LockWhen(const Condition& condition) {
  static auto* const real = Real<void(Mutex*, const Condition&)>(
      "_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE");
  Wait(this, real, this, condition);
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const real = Real<void(CondVar*, Mutex*)>(
      "_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  ::Wait(mutex, real, this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const real = Real<bool(CondVar*, Mutex*, Duration)>(
      "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  return ::Wait(mutex, real, this, mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const real = Real<bool(CondVar*, Mutex*, Time)>(
      "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  return ::Wait(mutex, real, this, mutex, deadline);
}

void Notification::Notify() {
  static auto* const real =
      Real<void(Notification*)>("_ZN4absl7debian312Notification6NotifyEv");
  // What HasBeenNotified() acquires by itself.
  __tsan_release(&notified_yet_);
  real(this);
}

void Notification::WaitForNotification() const {
  static auto* const real = Real<void(const Notification*)>(
      "_ZNK4absl7debian312Notification19WaitForNotificationEv");
  real(this);
  Acquire(&notified_yet_);
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const real = Real<bool(const Notification*, Duration)>(
      "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_"
      "8DurationE");
  const bool notified = real(this, timeout);
  if (notified) Acquire(&notified_yet_);
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  static auto* const real = Real<bool(const Notification*, Time)>(
      "_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_"
      "4TimeE");
  const bool notified = real(this, deadline);
  if (notified) Acquire(&notified_yet_);
  return notified;
}

bool BlockingCounter::DecrementCount() {
  static auto* const real = Real<bool(BlockingCounter*)>(
      "_ZN4absl7debian315BlockingCounter14DecrementCountEv");
  __tsan_release(this);
  return real(this);
}

void BlockingCounter::Wait() {
  static auto* const real = Real<void(BlockingCounter*)>(
      "_ZN4absl7debian315BlockingCounter4WaitEv");
  real(this);
  __tsan_acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
