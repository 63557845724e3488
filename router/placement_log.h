// Where the attempts at one request went, why there, and how they ended: kept
// with the request for `baton explain`. Costs a placement a copy of at most
// kMaxCandidates small structs.
//
// Plain values; used by the router's loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/worker_registry.h"
#include "scheduling/placement.h"

namespace baton::router {

// What connections are called, also those that are gone. Bounded: the oldest
// are forgotten, and are "gone" then.
class WorkerNames final {
 public:
  static constexpr size_t kMax = 4096;

  // Knows from now on what the candidates, who are connected, are called.
  void Learn(const std::vector<scheduling::PlacementCandidate>& candidates,
             const WorkerRegistry& registry);
  // Empty for kNoWorker.
  std::string NameOf(scheduling::WorkerId id) const;

 private:
  std::map<scheduling::WorkerId, std::string> names_;
};

class PlacementLog final {
 public:
  static constexpr size_t kMaxEntries = 16;
  static constexpr size_t kMaxCandidates = 64;
  static constexpr size_t kMaxEndedBytes = 512;

  struct Entry {
    absl::Time at;
    scheduling::PlacementVerdict verdict;
    int32_t prefill_tokens = 0;
    // Of those, in the prefix cache of whoever computes them, it is believed.
    int32_t cached_tokens = 0;
    int32_t total_tokens = 0;
    // Why it was not placed earlier, last.
    std::optional<scheduling::PlacementReason> waited_for;
    std::vector<scheduling::PlacementCandidate> candidates;
    // How the attempt ended; empty: well, or not yet.
    std::string ended;
  };

  // Of more than kMaxEntries, the first and the last ones are kept.
  void Add(Entry entry);
  // How the last attempt ended. The first word on it counts.
  void Ended(absl::string_view why);

  const std::vector<Entry>& entries() const { return entries_; }
  uint32_t left_out() const { return left_out_; }
  // Roughly what it takes of memory, besides the object itself.
  size_t ByteSize() const;

  // `received_at` is when the request came.
  void Describe(absl::Time received_at, const WorkerNames& names,
                v1::ExplainRequestResponse* response) const;

 private:
  std::vector<Entry> entries_;
  uint32_t left_out_ = 0;
};

}  // namespace baton::router
