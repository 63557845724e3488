// When a worker that says nothing is taken for lost, and how that time grows
// when it turns out that it was not.
//
// A worker is asked for a sign of life whenever it was silent for `interval`,
// and is lost when it was silent for `patience` more. One that was taken for
// lost and comes back in the same life (its incarnation) was only slow: a
// machine that does not let it run, a network that stalls. All that it had was
// computed again for nothing, and on a machine that has too much to do already
// this feeds itself: every worker is lost again and again and no request gets
// on. So each such mistake doubles the patience with that worker, up to
// `max_patience`, and each `calm` without one halves it again.
//
// Time in which the observer itself did not run says nothing about others and
// is not counted.
//
// The idea of a detector that adapts to what it sees: N. Hayashibara et al.,
// The phi accrual failure detector, SRDS 2004; here with doubling, which needs
// no model of delays.
//
// Pure: the caller gives the time; one thread.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace baton::scheduling {

class FailureDetector final {
 public:
  struct Options {
    absl::Duration interval = absl::Milliseconds(500);
    absl::Duration patience = absl::Milliseconds(900);
    absl::Duration max_patience = absl::Seconds(8);
    absl::Duration calm = absl::Minutes(1);
  };

  FailureDetector() = default;
  explicit FailureDetector(const Options& options) : options_(options) {}

  // A life of the worker is there, and answers from now on. Returns whether it
  // is the one that was taken for lost.
  bool Connected(uint64_t incarnation, absl::Time now);
  // The connection of that life is gone. `silent`: it was taken for lost, at
  // LostAt().
  void Disconnected(bool silent);

  // It said something.
  void Heard(absl::Time now) { heard_at_ = now; }
  // The observer came to itself at `now`, later by `by` than it wanted.
  void Stalled(absl::Duration by, absl::Time now);

  // When it is to be asked for a sign of life.
  absl::Time AskAt() const { return heard_at_ + options_.interval; }
  // When it is lost, unless it is heard before.
  absl::Time LostAt(absl::Time now) const {
    return AskAt() + patience(now);
  }
  // How long it may take to answer.
  absl::Duration patience(absl::Time now) const;

 private:
  Options options_;
  absl::Time heard_at_ = absl::InfiniteFuture();
  uint64_t incarnation_ = 0;
  bool taken_for_lost_ = false;
  // As of the last mistake.
  absl::Duration patience_ = absl::ZeroDuration();
  absl::Time mistaken_at_ = absl::InfinitePast();
};

}  // namespace baton::scheduling
