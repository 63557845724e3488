#include "tests/bench/router_benchmark_clients.h"

#include "absl/strings/str_cat.h"

namespace baton::bench {
namespace {

// Streams that wait for their first token.
constexpr int kMaxBeginning = 128;
constexpr int64_t kPatienceNs = 30'000'000'000;

}  // namespace

absl::Status StreamClients::Open(int first, int count) {
  const int begun_before = NumBegun();
  const int64_t deadline = NowNs() + kPatienceNs;
  int begun = 0;
  for (int opened = 0; begun < count;) {
    while (opened < count && opened - begun < kMaxBeginning) {
      Begin(first + opened);
      ++opened;
    }
    SleepSeconds(0.002);
    begun = NumBegun() - begun_before;
    if (NumEnded() > 0) return absl::InternalError(FirstError());
    if (NowNs() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(begun, " of ", count, " streams have begun"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::bench
