// What a simulation did: its last events, the first violation of an invariant,
// and a digest of everything, which is the same whenever a seed is run again.
// One thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/sim/sim_clock.h"

namespace baton::sim {

class Journal final {
 public:
  // The clock outlives the journal.
  explicit Journal(const SimClock* clock)
      : clock_(clock), start_(clock->Now()) {}

  // `what` is a literal; `party` is who, -1 when nobody.
  void Note(const char* what, int party = -1, uint64_t a = 0, uint64_t b = 0);

  // An invariant is broken. The first one counts.
  void Violate(absl::string_view what);
  const std::optional<std::string>& violation() const { return violation_; }

  uint64_t num_events() const { return num_events_; }
  uint64_t digest() const { return digest_; }
  // The last events, one a line.
  std::string Tail() const;

 private:
  struct Entry {
    absl::Time at;
    const char* what = "";
    int party = -1;
    uint64_t a = 0;
    uint64_t b = 0;
  };
  static constexpr uint64_t kKept = 256;

  const SimClock* const clock_;
  const absl::Time start_;
  std::array<Entry, kKept> entries_;
  uint64_t num_events_ = 0;
  uint64_t digest_ = 0;
  std::optional<std::string> violation_;
};

}  // namespace baton::sim
