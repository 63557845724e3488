#include "tests/sim/journal.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/sim/mix.h"

namespace baton::sim {

void Journal::Note(const char* what, int party, uint64_t a, uint64_t b) {
  const absl::Time now = clock_->Now();
  entries_[num_events_ % kKept] = {now, what, party, a, b};
  ++num_events_;
  for (const char* c = what; *c != '\0'; ++c) {
    digest_ = Mix(digest_, static_cast<unsigned char>(*c));
  }
  digest_ = Mix(digest_, static_cast<uint64_t>(party + 1));
  digest_ = Mix(Mix(digest_, a), b);
  digest_ = Mix(digest_, absl::ToInt64Microseconds(now - start_));
}

void Journal::Violate(absl::string_view what) {
  if (violation_.has_value()) return;
  violation_ = absl::StrFormat("%s (event %d, %.3f s)", what, num_events_,
                               absl::ToDoubleSeconds(clock_->Now() - start_));
}

std::string Journal::Tail() const {
  std::string out;
  const uint64_t count = std::min(num_events_, kKept);
  for (uint64_t i = num_events_ - count; i < num_events_; ++i) {
    const Entry& entry = entries_[i % kKept];
    absl::StrAppendFormat(&out, "%8d %9.3f %4d %-28s %x %x\n", i,
                          absl::ToDoubleSeconds(entry.at - start_), entry.party,
                          entry.what, entry.a, entry.b);
  }
  return out;
}

}  // namespace baton::sim
