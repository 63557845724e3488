// What the loop tells the services: whether it serves, with whom, and the
// limits that follow. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/adapter_names.h"

namespace baton::router {

struct Serving {
  // A prompt could be placed, and the router is not going away.
  bool serving = false;
  bool draining = false;
  int num_prefill_workers = 0;
  int num_decode_workers = 0;
  // Of the workers; empty and 0 while there is none.
  std::string model_identity;
  int block_size = 0;
  // Most tokens of one sequence.
  int max_context = 0;
  // All of them keep answers to a grammar: none is of an earlier version.
  bool takes_grammars = true;
  // Never null; another one only when something of it is another.
  std::shared_ptr<const AdapterNames> adapters =
      std::make_shared<AdapterNames>();

  friend bool operator==(const Serving&, const Serving&) = default;
};

class ServingState final {
 public:
  Serving Get() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return serving_;
  }

  // True when it is another one than before.
  bool Set(const Serving& serving) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const bool changed = !(serving_ == serving);
    serving_ = serving;
    return changed;
  }

  // The loop takes a turn: proves that it does not hang. Monotonic.
  void Beat(absl::Time now) { last_turn_ns_ = absl::ToUnixNanos(now); }
  absl::Time last_turn() const { return absl::FromUnixNanos(last_turn_ns_); }

 private:
  std::atomic<int64_t> last_turn_ns_{0};
  mutable absl::Mutex mu_;
  Serving serving_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::router
