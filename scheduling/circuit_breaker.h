// Keeps requests away from what fails again and again, and tries it again in
// time: neither is a healthy worker shut out for ever after one bad moment, nor
// does each request have to find out anew.
//
//   kClosed --`failures` within `window`--> kOpen --its time is over-->
//   kHalfOpen: one request goes through as a probe
//      its success --> kClosed
//      its failure --> kOpen, for twice as long (bounded)
//      no word of it for as long as it was open --> the next probe
//
// Pure: the caller gives the time; one thread.
#pragma once

#include <vector>

#include "absl/time/time.h"

namespace baton::scheduling {

class CircuitBreaker final {
 public:
  enum class State { kClosed, kOpen, kHalfOpen };

  struct Options {
    int failures = 3;
    absl::Duration window = absl::Seconds(10);
    absl::Duration min_open = absl::Seconds(1);
    absl::Duration max_open = absl::Seconds(30);
  };

  CircuitBreaker() = default;
  explicit CircuitBreaker(const Options& options) : options_(options) {}

  // A request ended, well or through a fault of what is guarded here.
  void Succeeded();
  void Failed(absl::Time now);

  // Whether a request may go through.
  bool Allows(absl::Time now) const { return now >= shut_until_; }
  // One does.
  void Sent(absl::Time now);

  State state(absl::Time now) const;
  // When Allows turns true; InfinitePast when it is.
  absl::Time NextDue(absl::Time now) const;

 private:
  Options options_;
  bool open_ = false;     // or half open
  bool probing_ = false;  // a probe is under way
  absl::Time shut_until_ = absl::InfinitePast();
  absl::Duration open_for_ = absl::ZeroDuration();
  // Within the window, while closed; few. There may be very many breakers.
  std::vector<absl::Time> failures_;
};

}  // namespace baton::scheduling
