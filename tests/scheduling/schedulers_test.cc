// Both schedulers, driven as the workers' loops drive them: plan, commit.

#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_pool.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/prefill_scheduler.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/sequence.h"

namespace baton::scheduling {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<Sequence> MakeSequence(uint64_t id, int32_t prompt,
                                       int32_t max_output = 8) {
  std::vector<TokenId> tokens(prompt);
  for (int32_t i = 0; i < prompt; ++i) tokens[i] = i;
  StopParams stop;
  stop.max_output_tokens = max_output;
  return std::make_unique<Sequence>(SequenceId{id}, std::move(tokens), prompt,
                                    SamplingParams(), stop);
}

// (sequence, first position, tokens, sample) of each entry.
std::vector<std::tuple<uint64_t, int32_t, int32_t, bool>> Entries(
    const StepPlan& plan) {
  std::vector<std::tuple<uint64_t, int32_t, int32_t, bool>> out;
  for (const PlannedSequence& s : plan.sequences) {
    out.emplace_back(static_cast<uint64_t>(s.sequence), s.first_position,
                     static_cast<int32_t>(s.tokens.size()), s.sample);
  }
  return out;
}

using Entry = std::tuple<uint64_t, int32_t, int32_t, bool>;

void CommitPlan(const StepPlan& plan,
                const std::map<SequenceId, Sequence*>& sequences) {
  std::vector<std::pair<SequenceId, bool>> done;
  for (const PlannedSequence& s : plan.sequences) {
    sequences.at(s.sequence)
        ->CommitComputed(static_cast<int32_t>(s.tokens.size()));
    done.emplace_back(s.sequence, s.sample);
  }
  for (const auto& [id, sampled] : done) {
    if (sampled) sequences.at(id)->CommitSampled(100);
  }
}

TEST(SequenceTest, PlansTheRestAndSamplesAtTheEnd) {
  BlockPool pool(8);
  auto sequence = MakeSequence(1, 10);
  sequence->blocks() = *pool.Allocate(1);
  StepPlan plan;
  sequence->AppendTo(&plan, 4);
  EXPECT_THAT(Entries(plan), ElementsAre(Entry{1, 0, 4, false}));
  sequence->CommitComputed(4);
  plan = StepPlan();
  sequence->AppendTo(&plan, 100);
  EXPECT_THAT(Entries(plan), ElementsAre(Entry{1, 4, 6, true}));
  EXPECT_EQ(plan.sequences[0].history.size(), 10u);
  sequence->CommitComputed(6);
  sequence->CommitSampled(3);
  EXPECT_EQ(sequence->num_output(), 1);
  EXPECT_EQ(sequence->uncomputed(), 1);
  EXPECT_FALSE(sequence->finished().has_value());
  sequence->CheckInvariants(/*block_size=*/16);
}

TEST(SequenceTest, OutputOfAnEarlierAttemptCountsTowardsTheBound) {
  StopParams stop;
  stop.max_output_tokens = 3;
  Sequence sequence(SequenceId{1}, {1, 2, 3, 4}, /*prompt_length=*/2,
                    SamplingParams(), stop);
  EXPECT_EQ(sequence.num_output(), 2);
  EXPECT_EQ(sequence.MaxComputed(), 4);
  sequence.AdoptComputed(4);
  sequence.AdoptSampled(9);
  EXPECT_EQ(sequence.finished(), FinishReason::kLength);
}

TEST(PrefillSchedulerTest, SharesTheBudgetFirstComeFirstServed) {
  BlockPool pool(16);
  PrefillScheduler scheduler({.token_budget = 10, .block_size = 4}, &pool);
  auto a = MakeSequence(1, 14), b = MakeSequence(2, 3), c = MakeSequence(3, 9);
  for (Sequence* s : {a.get(), b.get(), c.get()}) scheduler.Add(s);
  const std::map<SequenceId, Sequence*> all = {
      {a->id(), a.get()}, {b->id(), b.get()}, {c->id(), c.get()}};

  StepPlan plan = scheduler.Plan();
  EXPECT_THAT(Entries(plan), ElementsAre(Entry{1, 0, 10, false}));
  CommitPlan(plan, all);
  EXPECT_EQ(scheduler.QueuedTokens(), 16);
  plan = scheduler.Plan();
  EXPECT_THAT(Entries(plan),
              ElementsAre(Entry{1, 10, 4, true}, Entry{2, 0, 3, true},
                          Entry{3, 0, 3, false}));
  CommitPlan(plan, all);
  scheduler.Remove(a->id());
  scheduler.Remove(b->id());
  scheduler.CheckInvariants();
  plan = scheduler.Plan();
  EXPECT_THAT(Entries(plan), ElementsAre(Entry{3, 3, 6, true}));
}

TEST(PrefillSchedulerTest, AHeadWithoutBlocksHoldsBackThoseBehind) {
  BlockPool pool(4);
  PrefillScheduler scheduler({.token_budget = 100, .block_size = 4}, &pool);
  auto big = MakeSequence(1, 16), small = MakeSequence(2, 4);
  std::optional<PooledBlocks> taken = pool.Allocate(1);
  scheduler.Add(big.get());
  scheduler.Add(small.get());
  EXPECT_TRUE(scheduler.Plan().sequences.empty());
  taken->Release();
  EXPECT_THAT(Entries(scheduler.Plan()), ElementsAre(Entry{1, 0, 16, true}));
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(PrefillSchedulerTest, BeginsBehindWhatIsCached) {
  BlockPool pool(8);
  PrefixCache cache({.block_size = 4}, &pool);
  PrefillScheduler scheduler({.token_budget = 8, .block_size = 4}, &pool,
                             &cache);
  auto a = MakeSequence(1, 14), b = MakeSequence(2, 12);
  scheduler.Add(a.get());
  scheduler.Add(b.get());
  const std::map<SequenceId, Sequence*> all = {{a->id(), a.get()},
                                               {b->id(), b.get()}};
  StepPlan plan = scheduler.Plan();
  EXPECT_THAT(Entries(plan), ElementsAre(Entry{1, 0, 8, false}));
  CommitPlan(plan, all);
  cache.Insert(a.get());
  // What one sequence has computed is there when the next one starts; all but
  // the last block of it here, for a token to compute.
  plan = scheduler.Plan();
  EXPECT_THAT(Entries(plan),
              ElementsAre(Entry{1, 8, 6, true}, Entry{2, 8, 2, false}));
  EXPECT_EQ(b->cached(), 8);
  EXPECT_EQ(b->blocks().ids().first(2), a->blocks().ids().first(2));
  CommitPlan(plan, all);
  scheduler.Remove(a->id());
  scheduler.CheckInvariants();
  EXPECT_EQ(scheduler.QueuedTokens(), 2);
}

TEST(PrefillSchedulerTest, WhoWaitsForBlocksHoldsNone) {
  BlockPool pool(6);
  PrefixCache cache({.block_size = 4}, &pool);
  PrefillScheduler scheduler({.token_budget = 100, .block_size = 4}, &pool,
                             &cache);
  auto a = MakeSequence(1, 16);
  scheduler.Add(a.get());
  CommitPlan(scheduler.Plan(), {{a->id(), a.get()}});
  cache.Insert(a.get());
  scheduler.Remove(a->id());
  // It begins as a does, but is too long for what is left.
  auto b = MakeSequence(2, 24);
  std::optional<PooledBlocks> taken = pool.Allocate(2);
  scheduler.Add(b.get());
  EXPECT_TRUE(scheduler.Plan().sequences.empty());
  a.reset();
  EXPECT_EQ(pool.num_available(), 4);
  EXPECT_TRUE(scheduler.Plan().sequences.empty());
  EXPECT_EQ(pool.num_available(), 4);
  taken->Release();
  EXPECT_THAT(Entries(scheduler.Plan()), ElementsAre(Entry{2, 16, 8, true}));
  EXPECT_EQ(cache.num_evictions(), 0);
}

TEST(DecodeSchedulerTest, StreamsGoBeforePrompts) {
  BlockPool pool(32);
  DecodeScheduler scheduler({.token_budget = 6, .block_size = 4});
  auto prompt = MakeSequence(1, 12), stream = MakeSequence(2, 3);
  for (Sequence* s : {prompt.get(), stream.get()}) {
    s->blocks() = *pool.Allocate(5);
  }
  stream->AdoptComputed(3);
  stream->AdoptSampled(7);
  scheduler.Add(prompt.get());
  scheduler.Add(stream.get());
  EXPECT_EQ(scheduler.QueuedTokens(), 12);
  EXPECT_THAT(Entries(scheduler.Plan()),
              ElementsAre(Entry{2, 3, 1, true}, Entry{1, 0, 5, false}));
}

TEST(DecodeSchedulerTest, MoreStreamsThanBudgetTakeTurns) {
  BlockPool pool(64);
  DecodeScheduler scheduler({.token_budget = 2, .block_size = 4});
  std::vector<std::unique_ptr<Sequence>> streams;
  std::map<SequenceId, Sequence*> all;
  for (uint64_t id = 0; id < 5; ++id) {
    streams.push_back(MakeSequence(id, 2, /*max_output=*/20));
    Sequence* s = streams.back().get();
    s->blocks() = *pool.Allocate(6);
    s->AdoptComputed(2);
    s->AdoptSampled(1);
    scheduler.Add(s);
    all[s->id()] = s;
  }
  for (int step = 0; step < 10; ++step) {
    const StepPlan plan = scheduler.Plan();
    EXPECT_EQ(plan.NumTokens(), 2);
    CommitPlan(plan, all);
  }
  for (const auto& s : streams) EXPECT_EQ(s->num_output(), 1 + 4);
}

// Random arrivals, cancellations and steps through prefill and decode: the
// invariants hold, no block is lost, every sequence ends as it should.
TEST(SchedulersTest, RandomEventStreams) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    constexpr int32_t kBlockSize = 4;
    BlockPool prefill_pool(48), decode_pool(96);
    PrefillScheduler prefill(
        {.token_budget = static_cast<int32_t>(1 + random() % 40),
         .block_size = kBlockSize},
        &prefill_pool);
    DecodeScheduler decode(
        {.token_budget = static_cast<int32_t>(1 + random() % 16),
         .block_size = kBlockSize});
    std::map<SequenceId, std::unique_ptr<Sequence>> on_prefill, on_decode;
    uint64_t next_id = 0;
    int finished = 0;
    for (int turn = 0; turn < 600; ++turn) {
      if (turn < 400 && random() % 3 == 0) {
        auto s = MakeSequence(next_id++, 1 + random() % 60, 1 + random() % 12);
        prefill.Add(s.get());
        on_prefill[s->id()] = std::move(s);
      }
      if (random() % 20 == 0 && !on_prefill.empty()) {
        const SequenceId id = on_prefill.begin()->first;
        prefill.Remove(id);
        on_prefill.erase(id);
      }
      const StepPlan prefill_plan = prefill.Plan();
      std::vector<SequenceId> sampled;
      for (const PlannedSequence& p : prefill_plan.sequences) {
        on_prefill.at(p.sequence)->CommitComputed(p.tokens.size());
        if (p.sample) sampled.push_back(p.sequence);
      }
      for (SequenceId id : sampled) {
        prefill.Remove(id);
        // The hand-off, in the small: another worker's sequence adopts it.
        std::unique_ptr<Sequence> from = std::move(on_prefill[id]);
        on_prefill.erase(id);
        auto to = std::make_unique<Sequence>(id, from->tokens(),
                                             from->prompt_length(),
                                             from->sampling(), from->stop());
        const int32_t blocks =
            (to->MaxComputed() + kBlockSize - 1) / kBlockSize;
        std::optional<PooledBlocks> got = decode_pool.Allocate(blocks);
        if (!got.has_value()) continue;  // refused
        to->blocks() = *std::move(got);
        to->AdoptComputed(to->num_tokens());
        to->AdoptSampled(1);
        if (to->finished().has_value()) continue;
        decode.Add(to.get());
        on_decode[id] = std::move(to);
      }
      const StepPlan decode_plan = decode.Plan();
      sampled.clear();
      for (const PlannedSequence& p : decode_plan.sequences) {
        ASSERT_TRUE(p.sample);
        on_decode.at(p.sequence)->CommitComputed(p.tokens.size());
        sampled.push_back(p.sequence);
      }
      for (SequenceId id : sampled) {
        Sequence* s = on_decode.at(id).get();
        s->CommitSampled(2);
        if (!s->finished().has_value()) continue;
        ASSERT_EQ(s->num_output(), s->stop().max_output_tokens);
        decode.Remove(id);
        on_decode.erase(id);
        ++finished;
      }
      prefill.CheckInvariants();
      decode.CheckInvariants();
      prefill_pool.CheckInvariants();
      decode_pool.CheckInvariants();
    }
    EXPECT_GT(finished, 20);
    while (!on_prefill.empty()) {
      prefill.Remove(on_prefill.begin()->first);
      on_prefill.erase(on_prefill.begin());
    }
    on_decode.clear();
    EXPECT_EQ(prefill_pool.num_in_use(), 0);
    EXPECT_EQ(decode_pool.num_in_use(), 0);
  }
}

}  // namespace
}  // namespace baton::scheduling
