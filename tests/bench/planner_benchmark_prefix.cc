#include "tests/bench/planner_benchmark_prefix.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "planner/cluster_simulation.h"
#include "planner/prefix_cache_simulation.h"
#include "planner/prefix_chains.h"
#include "workload/trace.h"
#include "workload/workload.h"

namespace baton::bench {
namespace {

using planner::PrefixChains;
using workload::PlannedRequest;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
// Requests per second and worker.
constexpr double kRate = 0.15;
// KV memory besides that of the cache, for sequences that run.
constexpr int64_t kWorkingTokens = 500'000;

// One cache that serves all requests, one after the other.
class OneCache final {
 public:
  explicit OneCache(absl::Span<const PlannedRequest> requests)
      : requests_(requests), chains_(requests) {
    for (const PlannedRequest& request : requests) {
      prompt_tokens_ += request.prompt_tokens;
    }
  }

  int64_t all_tokens() const {
    return int64_t{chains_.num_entries()} * chains_.entry_tokens();
  }

  // What goes is what was used the longest ago.
  double Lru(int64_t max_tokens) const {
    planner::PrefixCacheSimulation cache(
        {.max_tokens = std::min(max_tokens, all_tokens())}, &chains_);
    int64_t found = 0;
    for (uint32_t i = 0; i < requests_.size(); ++i) {
      found += cache.Hold(i, MostTokens(i));
      cache.Insert(i);
      cache.Release(i);
      cache.TakeChanges();
    }
    return Rate(found);
  }

  // What goes is what is needed again the latest (Belady, 1966); nothing can
  // find more.
  double Best(int64_t max_tokens) const {
    const auto most = static_cast<size_t>(std::min(max_tokens, all_tokens()) /
                                          chains_.entry_tokens());
    const std::vector<size_t> next = NextUses();
    std::vector<size_t> next_of(chains_.num_entries(), 0);  // 0: not here
    // When it is needed next, and which.
    std::set<std::pair<size_t, uint32_t>> entries;
    int64_t found = 0;
    size_t use = 0;
    for (uint32_t i = 0; i < requests_.size(); ++i) {
      const absl::Span<const uint32_t> chain = chains_.Of(i);
      const auto usable =
          static_cast<size_t>(MostTokens(i) / chains_.entry_tokens());
      for (size_t k = 0; k < chain.size(); ++k, ++use) {
        const uint32_t entry = chain[k];
        if (next_of[entry] != 0) {
          if (k < usable) found += chains_.entry_tokens();
          entries.erase({next_of[entry], entry});
        }
        next_of[entry] = 0;
        if (next[use] == kNotAgain) continue;
        next_of[entry] = next[use];
        entries.emplace(next[use], entry);
        if (entries.size() <= most) continue;
        const auto last = std::prev(entries.end());
        next_of[last->second] = 0;
        entries.erase(last);
      }
    }
    return Rate(found);
  }

 private:
  static constexpr size_t kNotAgain = std::numeric_limits<size_t>::max();

  // The last token of a prompt is always computed.
  int32_t MostTokens(uint32_t request) const {
    return requests_[request].prompt_tokens - 1;
  }

  double Rate(int64_t tokens) const {
    return static_cast<double>(tokens) / static_cast<double>(prompt_tokens_);
  }

  // For each use of an entry, in order, the request that uses it next, plus
  // one.
  std::vector<size_t> NextUses() const {
    std::vector<size_t> next;
    std::vector<size_t> coming(chains_.num_entries(), kNotAgain);
    for (auto i = static_cast<uint32_t>(requests_.size()); i > 0; --i) {
      const absl::Span<const uint32_t> chain = chains_.Of(i - 1);
      for (size_t k = chain.size(); k > 0; --k) {
        next.push_back(coming[chain[k - 1]]);
        coming[chain[k - 1]] = i;
      }
    }
    std::reverse(next.begin(), next.end());
    return next;
  }

  const absl::Span<const PlannedRequest> requests_;
  const PrefixChains chains_;
  int64_t prompt_tokens_ = 0;
};

// `tokens` of cache on all workers together; aggregated or half of them
// prefill workers, whose caches count.
void PrintCluster(const planner::ClusterProfile& profile,
                  const std::vector<PlannedRequest>& requests,
                  int32_t computing, bool pools, int64_t tokens) {
  const int64_t each = tokens / computing;
  planner::SimulationOptions options;
  options.profile = profile;
  for (planner::WorkerProfile* worker :
       {&options.profile.prefill, &options.profile.decode}) {
    worker->total_blocks =
        static_cast<int32_t>((each + kWorkingTokens) / worker->block_size);
  }
  options.num_prefill = pools ? computing : 0;
  options.num_decode = computing;
  options.allow_local_prefill = !pools;
  options.prefix_cache_tokens = each;
  for (const char* placement : {"least-load", "prefix-affine", "cost-model"}) {
    options.placement = placement;
    const planner::SimulationResult result =
        Simulate(options, requests, requests.back().at);
    std::printf(" | %5.1f%% %6.0f", 100 * PrefixHitRate(result),
                result.ttft.p90);
    std::fflush(stdout);
  }
}

}  // namespace

int RunPrefix(const std::string& trace, const planner::ClusterProfile& profile,
              const std::vector<int32_t>& workers) {
  const auto requests =
      workload::ReadTrace(trace, workload::TraceFormat::kMooncake);
  if (!requests.ok()) {
    std::fprintf(stderr, "%s\n", requests.status().ToString().c_str());
    return 1;
  }
  const OneCache one(*requests);
  std::printf(
      "%zu requests, %.2f per second and worker; %.1f M tokens of different "
      "prefixes\nprompt tokens that are found in a prefix cache, and TTFT p90 "
      "in ms; (+): prefill and decode\nworkers, of which the former compute "
      "the prompts; cache: M tokens over all workers that do\n%8s %6s %8s %8s "
      "| %13s | %13s | %13s\n",
      requests->size(), kRate, 1e-6 * static_cast<double>(one.all_tokens()),
      "workers", "cache", "best", "LRU", "least-load", "prefix-affine",
      "cost-model");
  for (const int32_t count : workers) {
    const auto at_rate = workload::AtRate(*requests, kRate * count);
    for (const bool pools : {false, true}) {
      for (const int64_t millions : {2, 4, 8, 16, 32, 0}) {
        const int64_t tokens = millions > 0 ? millions * 1'000'000 : kUnlimited;
        const int64_t at_most = std::min(tokens, one.all_tokens() * count);
        std::printf("%6d%s %6s %7.1f%% %7.1f%%", count, pools ? "+" : " ",
                    millions > 0 ? std::to_string(millions).c_str() : "all",
                    100 * one.Best(tokens), 100 * one.Lru(tokens));
        PrintCluster(profile, at_rate, count, pools, at_most);
        std::printf("\n");
      }
    }
  }
  return 0;
}

}  // namespace baton::bench
