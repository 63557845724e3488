// What the workers say of their prefix caches, kept for placement: who has how
// much of a prompt.
//
// News are applied a little in each turn of the loop, however many come, so
// that no request waits for them; a link's messages count as consumed when they
// are applied, so a worker that talks faster is slowed down. Everything is a
// hint (scheduling/prefix_index.h): what is late, dropped or wrong costs time
// only.
//
// Used by the router's loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/v1/worker.pb.h"
#include "common/stable_hash.h"
#include "router/prefix_metrics.h"
#include "router/prompt_prefix.h"
#include "scheduling/placement.h"
#include "scheduling/prefix_index.h"

namespace baton::router {

class PrefixHints final {
 public:
  struct Options {
    // Off: nothing is kept, nobody is known to have anything.
    bool enabled = true;
    scheduling::PrefixIndex::Options index;
  };

  // `metrics` outlives the hints.
  PrefixHints(const Options& options, PrefixMetrics* metrics);

  // A worker said this, on the link of that number. False when it is of no use:
  // the message is consumed.
  bool Take(int link, scheduling::WorkerId worker, v1::PrefixNews news);
  // The worker is gone; what it said and was not applied is dropped.
  void Forget(scheduling::WorkerId worker);

  // Applies some of the news. Returns the links whose messages are consumed
  // now, each as often as messages. Call it once in each turn.
  std::vector<int> ApplySome();
  // Whether news wait to be applied.
  bool pending() const { return !news_.empty(); }
  // For tests.
  scheduling::PrefixIndex* index() { return &index_; }

  // Who has how much of the prompt, by worker id, at most `most_tokens` each.
  // Looks no more often than is of use while a request waits. Valid until the
  // next call for the same prompt.
  absl::Span<const scheduling::CachedPrompt> Look(PromptPrefix* prefix,
                                                  int32_t most_tokens,
                                                  absl::Time now);

 private:
  struct News {
    int link = 0;
    scheduling::WorkerId worker = scheduling::kNoWorker;
    v1::PrefixNews news;
  };

  void Apply(const News& news);

  const Options options_;
  PrefixMetrics* const metrics_;
  scheduling::PrefixIndex index_;
  std::deque<News> news_;
  // Kept for their memory.
  std::vector<Hash128> names_;
  std::vector<scheduling::PrefixMatch> matches_;
};

}  // namespace baton::router
