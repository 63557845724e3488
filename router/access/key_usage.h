// What one API key has used of its limits: requests that run, and two buckets
// that fill up evenly over each minute.
//
// Requests are taken before they begin; tokens are counted when they are known,
// so that bucket can go below zero, and the key is refused until it is not. A
// call that asks for more requests than a minute brings gets them once the
// bucket is full, and leaves it as far below zero.
//
// Pure: the caller gives the time and owns the lock.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "router/access/key_file.h"

namespace baton::router {

// Holds at most what a minute brings, and begins full.
class MinuteBucket final {
 public:
  // 0: without a limit.
  void SetRate(int64_t per_minute, absl::Time now);

  // Until there are `amount`, or as many as it holds; zero when there are.
  absl::Duration Wait(int64_t amount, absl::Time now);
  // May go below zero.
  void Take(int64_t amount, absl::Time now);

 private:
  void Fill(absl::Time now);

  int64_t per_minute_ = 0;
  double level_ = 0;
  absl::Time filled_at_ = absl::InfinitePast();
};

class KeyUsage final {
 public:
  enum class Refusal {
    kNone,
    kConcurrent,
    kNeverConcurrent,  // more at a time than there may ever be
    kRequests,
    kTokens,
  };
  struct Verdict {
    Refusal refusal = Refusal::kNone;
    // When to come back; of kConcurrent a guess, of kNeverConcurrent none.
    absl::Duration retry_after;
  };

  // Keeps what was used.
  void SetLimits(const KeyLimits& limits, absl::Time now);
  const KeyLimits& limits() const { return limits_; }

  // Takes `count` requests that Finish must give back, or nothing. `beside` of
  // those that run belong to the same call.
  Verdict Begin(int32_t count, int32_t beside, absl::Time now);
  void Finish(int32_t count);
  void CountTokens(int64_t tokens, absl::Time now);

 private:
  KeyLimits limits_;
  int32_t running_ = 0;
  MinuteBucket requests_;
  MinuteBucket tokens_;
};

}  // namespace baton::router
