// How much the router's prefix index takes and how fast it is, at the size of a
// large cluster: 1,000 workers that hold 10 million different blocks of 16
// tokens. Run by hand, on an otherwise idle machine:
//
//   prefix_index_benchmark
//
// Store, Remove: news of workers, in messages of 4,096 names ("items": names).
// Match: prompts of 100,000 tokens, that is 6,250 blocks; p50 and p99 in
// microseconds, and blocks looked up.
//   conversation: a system prompt that all workers have, then one that goes on,
//     on two workers.
//   new: the system prompt, and then nothing that is known.
//   crowd/N: N workers that stop at N different places.
// "bytes_per_block" is what the index says of itself, "rss_per_block" what the
// process took more from the system when it was filled.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "scheduling/block_hash.h"
#include "scheduling/prefix_index.h"

namespace baton::scheduling {
namespace {

constexpr int kWorkers = 1000;
constexpr int64_t kBlocks = 10'000'000;
constexpr int32_t kPrompt = 6250;
constexpr int32_t kSystemPrompt = 64;
constexpr size_t kMessage = 4096;
constexpr int64_t kMaxBytes = int64_t{2} << 30;

using Chain = std::vector<Hash128>;

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages >> pages;
  return static_cast<double>(pages * sysconf(_SC_PAGESIZE));
}

WorkerId Worker(size_t number) { return WorkerId{number % kWorkers + 1}; }

// The names of a conversation: made up, as good as hashes, and made again when
// needed.
Chain Conversation(uint64_t number, size_t blocks) {
  std::mt19937_64 random(number);
  Chain chain(blocks);
  for (Hash128& name : chain) name = {.high = random(), .low = random()};
  return chain;
}

void StoreAll(PrefixIndex* index, WorkerId worker,
              absl::Span<const Hash128> names) {
  for (size_t at = 0; at < names.size(); at += kMessage) {
    index->Store(worker, names.subspan(at, kMessage));
  }
}

// All workers have the system prompt (conversation 0); each conversation, of
// 500 to 6,000 blocks, is on a prefill and a decode worker.
struct Cluster {
  Cluster() : index({.max_bytes = kMaxBytes}) {
    const double before = ResidentBytes();
    const Chain system = Conversation(0, kSystemPrompt);
    for (size_t i = 0; i < kWorkers; ++i) index.Store(Worker(i), system);
    std::mt19937_64 random(1);
    for (uint64_t i = 1; index.num_blocks() < kBlocks; ++i) {
      const Chain chain = Conversation(i, 500 + random() % 5501);
      StoreAll(&index, Worker(2 * i), chain);
      StoreAll(&index, Worker(2 * i + 1), chain);
      lengths.push_back(static_cast<int32_t>(chain.size()));
    }
    resident = ResidentBytes() - before;
  }

  // A prompt that begins with the system prompt and goes on as a conversation;
  // then comes what nobody has.
  Chain Prompt(uint64_t conversation) const {
    Chain prompt = Conversation(0, kSystemPrompt);
    const Chain chain = Conversation(
        conversation, static_cast<size_t>(lengths[conversation - 1]));
    prompt.insert(prompt.end(), chain.begin(), chain.end());
    const Chain rest = Conversation(~conversation, kPrompt);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    prompt.resize(kPrompt);
    return prompt;
  }

  PrefixIndex index;
  std::vector<int32_t> lengths;  // of the conversations, from 1 on
  double resident = 0;
};

Cluster& TheCluster() {
  static auto* cluster = new Cluster;
  return *cluster;
}

// Times each of many calls.
class Calls {
 public:
  template <typename Call>
  void Time(Call call) {
    const int64_t start = absl::GetCurrentTimeNanos();
    call();
    nanos_.push_back(absl::GetCurrentTimeNanos() - start);
  }
  void Report(benchmark::State* state) {
    std::sort(nanos_.begin(), nanos_.end());
    const auto at = [&](double share) {
      const auto last = static_cast<double>(nanos_.size() - 1);
      return static_cast<double>(nanos_[static_cast<size_t>(share * last)]) /
             1e3;
    };
    state->counters["p50_us"] = at(0.5);
    state->counters["p99_us"] = at(0.99);
    state->counters["max_us"] = at(1);
  }

 private:
  std::vector<int64_t> nanos_;
};

void MatchAll(benchmark::State& state, const std::vector<Chain>& prompts) {
  PrefixIndex& index = TheCluster().index;
  std::vector<PrefixMatch> matches;
  Calls calls;
  const int64_t lookups = index.num_lookups();
  size_t next = 0;
  for (auto _ : state) {
    const Chain& prompt = prompts[next++ % prompts.size()];
    calls.Time([&] { index.Match(prompt, &matches); });
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["lookups"] =
      static_cast<double>(index.num_lookups() - lookups) /
      static_cast<double>(state.iterations());
  state.counters["matches"] = static_cast<double>(matches.size());
  calls.Report(&state);
}

// Prompts of their own for some thousand calls: the table is not in the cache.
void BM_MatchConversation(benchmark::State& state) {
  const Cluster& cluster = TheCluster();
  std::vector<Chain> prompts;
  for (uint64_t i = 1; i <= 2000; ++i) {
    prompts.push_back(cluster.Prompt(1 + i % cluster.lengths.size()));
  }
  MatchAll(state, prompts);
}
BENCHMARK(BM_MatchConversation)->Iterations(4000);

void BM_MatchNew(benchmark::State& state) {
  std::vector<Chain> prompts;
  for (uint64_t i = 1; i <= 2000; ++i) {
    prompts.push_back(Conversation(0, kSystemPrompt));
    const Chain rest = Conversation(~i, kPrompt - kSystemPrompt);
    prompts.back().insert(prompts.back().end(), rest.begin(), rest.end());
  }
  MatchAll(state, prompts);
}
BENCHMARK(BM_MatchNew)->Iterations(4000);

void BM_MatchCrowd(benchmark::State& state) {
  const auto count = static_cast<size_t>(state.range(0));
  PrefixIndex& index = TheCluster().index;
  const Chain prompt = Conversation(uint64_t{1} << 40, kPrompt);
  const auto all = absl::MakeConstSpan(prompt);
  for (size_t i = 0; i < count; ++i) {
    StoreAll(&index, Worker(i), all.subspan(0, kPrompt * (i + 1) / count));
  }
  MatchAll(state, {prompt});
  for (size_t i = 0; i < count; ++i) index.Remove(Worker(i), prompt);
}
BENCHMARK(BM_MatchCrowd)->Arg(10)->Arg(100)->Arg(1000)->Iterations(1000);

// News of a cluster at work: what one worker stores in place of what it evicts.
void BM_StoreAndRemove(benchmark::State& state) {
  PrefixIndex& index = TheCluster().index;
  Calls calls;
  uint64_t number = uint64_t{1} << 41;
  for (auto _ : state) {
    state.PauseTiming();
    const Chain chain = Conversation(++number, kMessage);
    state.ResumeTiming();
    calls.Time([&] { index.Store(Worker(number), chain); });
    index.Remove(Worker(number), chain);
  }
  state.SetItemsProcessed(2 * state.iterations() *
                          static_cast<int64_t>(kMessage));
  calls.Report(&state);
}
BENCHMARK(BM_StoreAndRemove)->Iterations(300);

// From nothing to 10 million blocks: the longest message shows what growing
// costs at once.
void BM_Fill(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    auto index = std::make_unique<PrefixIndex>(PrefixIndex::Options{kMaxBytes});
    Calls calls;
    uint64_t number = uint64_t{1} << 42;
    state.ResumeTiming();
    while (index->num_blocks() < kBlocks) {
      state.PauseTiming();
      const Chain chain = Conversation(++number, kMessage);
      state.ResumeTiming();
      calls.Time([&] { index->Store(Worker(number), chain); });
    }
    state.PauseTiming();
    calls.Report(&state);
    index.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kBlocks);
}
BENCHMARK(BM_Fill)->Iterations(1)->Unit(benchmark::kMillisecond);

// A worker with 10,000 blocks is lost; then how long cleaning up takes.
void BM_ForgetAndClean(benchmark::State& state) {
  PrefixIndex& index = TheCluster().index;
  const Chain chain = Conversation(uint64_t{1} << 43, 10000);
  constexpr WorkerId kLost{1'000'000};
  Calls forget;
  int64_t cleans = 0;
  for (auto _ : state) {
    state.PauseTiming();
    StoreAll(&index, kLost, chain);
    const int64_t held = index.num_held();
    state.ResumeTiming();
    forget.Time([&] { index.Forget(kLost); });
    while (index.num_held() > held - 10000) {
      index.Clean();
      ++cleans;
    }
  }
  state.counters["cleans"] =
      static_cast<double>(cleans) / static_cast<double>(state.iterations());
  forget.Report(&state);
}
BENCHMARK(BM_ForgetAndClean)->Iterations(3)->Unit(benchmark::kMillisecond);

// The names of a prompt of 100,000 tokens, as the front door makes them.
void BM_NamePrompt(benchmark::State& state) {
  std::vector<TokenId> tokens(16 * kPrompt);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<TokenId>(i * 7919 % 128000);
  }
  for (auto _ : state) benchmark::DoNotOptimize(ChainOf("", 16, tokens));
}
BENCHMARK(BM_NamePrompt)->Unit(benchmark::kMicrosecond);

void BM_Size(benchmark::State& state) {
  const Cluster& cluster = TheCluster();
  for (auto _ : state) benchmark::DoNotOptimize(cluster.index.bytes());
  const auto blocks = static_cast<double>(cluster.index.num_blocks());
  state.counters["blocks"] = blocks;
  state.counters["held"] = static_cast<double>(cluster.index.num_held());
  state.counters["bytes_per_block"] =
      static_cast<double>(cluster.index.bytes()) / blocks;
  state.counters["rss_per_block"] = cluster.resident / blocks;
}
BENCHMARK(BM_Size)->Iterations(1);

}  // namespace
}  // namespace baton::scheduling

BENCHMARK_MAIN();
