// Deadlines that all lie the same time ahead when they are set, as all of one
// kind do: so a list in order of setting is in order of time, and setting,
// clearing and finding the next one cost the same for one and for thousands.
//
// Of one thread. Holds no memory of its own: the hooks are the owners'.
#pragma once

#include "absl/time/time.h"

namespace baton::router::http {

template <typename Owner>
class DeadlineList;

// A place of `owner` in at most one list. Leaves it when it dies.
template <typename Owner>
class DeadlineHook final {
 public:
  explicit DeadlineHook(Owner* owner) : owner_(owner) {}
  ~DeadlineHook() { Clear(); }
  DeadlineHook(const DeadlineHook&) = delete;
  DeadlineHook& operator=(const DeadlineHook&) = delete;

  Owner* owner() const { return owner_; }
  bool is_set() const { return next_ != nullptr; }

  void Clear() {
    if (next_ == nullptr) return;
    previous_->next_ = next_;
    next_->previous_ = previous_;
    next_ = previous_ = nullptr;
  }

 private:
  friend class DeadlineList<Owner>;

  Owner* const owner_;
  absl::Time when_;
  DeadlineHook* previous_ = nullptr;  // null, as next_, in no list
  DeadlineHook* next_ = nullptr;
};

template <typename Owner>
class DeadlineList final {
 public:
  using Hook = DeadlineHook<Owner>;

  explicit DeadlineList(absl::Duration ahead) : ahead_(ahead), ring_(nullptr) {
    ring_.next_ = ring_.previous_ = &ring_;
  }
  // REQUIRES: no hook is left in the list.
  ~DeadlineList() = default;

  // Sets the hook, taking it out of the list it is in. REQUIRES: `now` does not
  // go back from call to call.
  void Set(Hook* hook, absl::Time now) {
    hook->Clear();
    hook->when_ = now + ahead_;
    hook->previous_ = ring_.previous_;
    hook->next_ = &ring_;
    ring_.previous_->next_ = hook;
    ring_.previous_ = hook;
  }

  // Takes out a hook whose time has come, or null.
  Hook* TakeExpired(absl::Time now) {
    Hook* const first = ring_.next_;
    if (first == &ring_ || first->when_ > now) return nullptr;
    first->Clear();
    return first;
  }

 private:
  const absl::Duration ahead_;
  Hook ring_;  // its begin and end
};

}  // namespace baton::router::http
