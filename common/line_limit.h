// How many lines of a kind a log gets in a second, however often there would be
// something to say: for what others can cause at will. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

class LineLimit final {
 public:
  explicit LineLimit(int per_second) : per_second_(per_second) {}

  // Whether a line may be written at `now`, which never goes back: how many
  // were left out since the last one that was written; or nothing: it is left
  // out.
  std::optional<int64_t> Take(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const int per_second_;
  absl::Mutex mu_;
  absl::Time second_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // its begin
  int written_ ABSL_GUARDED_BY(mu_) = 0;                           // in it
  int64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace baton
