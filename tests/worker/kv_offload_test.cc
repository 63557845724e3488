// What is stored of the prefix cache comes back as it was, in this process or
// the next, and never anything else. On the simulated engine, whose KV proves
// what it is, in the host's memory and on a device.
#include "worker/kv_offload.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/sim_engine.h"
#include "tests/sim/sim_store.h"
#include "tests/support/manual_clock.h"
#include "worker/kv_blocks.h"

namespace baton::worker {
namespace {

using scheduling::Sequence;
using scheduling::StepCost;
using sim::kBlockSize;
using sim::SimDisk;
using sim::SimEngine;
using sim::SimStore;

constexpr int32_t kNumBlocks = 16;
constexpr int32_t kStaged = 8;
constexpr int32_t kChunk = 32;

// `length` tokens that go with `name`; the first `shared` ones go with 0.
std::vector<TokenId> Prompt(int name, int length, int shared = 0) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) {
    prompt.push_back((i < shared ? 0 : name) * 100 + i + 1);
  }
  return prompt;
}

// One life of a worker's blocks, without its loop.
class Worker final {
 public:
  Worker(bool on_device, int32_t places, std::shared_ptr<SimDisk> disk,
         test::ManualClock* clock)
      : engine_(kNumBlocks,
                {.on_plan = [](const auto&) {},
                 .interlude = [] {},
                 .copied = [] { return true; }},
                on_device ? kStaged : 0),
        blocks_(&engine_, /*prefix_cache=*/true) {
    sim::SimStage* const stage = engine_.kv_stage();
    auto store = std::make_unique<SimStore>(
        stage != nullptr ? stage->staged().layout : engine_.kv_layout(),
        stage != nullptr ? stage->staged().memory : engine_.memory(), places,
        std::move(disk),
        SimStore::Faults{
            .chance =
                [this](double p) { return p == kGoesOn ? goes_on : fails; },
            .write_fails = kFails,
            .goes_on = kGoesOn});
    store_ = store.get();
    blocks_.AddOffload(std::move(store), {.engine = &engine_, .clock = clock});
  }

  // A sequence that begins: with what the cache has, and blocks for the rest.
  std::unique_ptr<Sequence> Begin(const std::vector<TokenId>& prompt,
                                  const std::string& salt = "") {
    scheduling::StopParams stop;
    stop.max_output_tokens = 1;
    auto sequence = std::make_unique<Sequence>(
        blocks_.NextSequence(), prompt, static_cast<int32_t>(prompt.size()),
        scheduling::SamplingParams(), stop, /*top_logprobs=*/0,
        scheduling::Urgency(), salt);
    scheduling::PooledBlocks blocks =
        blocks_.cache.Match(sequence.get(), sequence->num_tokens() - 1);
    const int32_t count = engine_.kv_layout().BlocksFor(sequence->num_tokens());
    auto rest = blocks_.pool.Allocate(count - blocks.size());
    CHECK(rest.has_value());
    blocks.Append(*std::move(rest));
    sequence->blocks() = std::move(blocks);
    if (sequence->cached() > 0) sequence->AdoptComputed(sequence->cached());
    return sequence;
  }
  // Computes what is left of the prompt.
  void Compute(Sequence* sequence) {
    scheduling::StepPlan plan;
    sequence->AppendTo(&plan, sequence->uncomputed());
    engine_.Execute(plan, [](int32_t) {});
    sequence->CommitComputed(sequence->uncomputed());
    blocks_.cache.Insert(sequence);
  }
  // All of a prompt's life, and what is stored of it then.
  void Run(const std::vector<TokenId>& prompt, const std::string& salt = "") {
    const auto sequence = Begin(prompt, salt);
    Compute(sequence.get());
    offload().Save(*sequence);
    Finish();
  }
  // Nothing is left in the cache.
  void Evict() { blocks_.cache.Clear(); }

  bool Load(Sequence* sequence, const StepCost& cost = {}) {
    return offload().Load(sequence, cost, kChunk);
  }
  // Whatever is under way is done.
  void Finish() {
    for (int i = 0; i < 50; ++i) {
      store_->Pass();
      if (engine_.kv_stage() != nullptr) engine_.kv_stage()->Pass();
      offload().Poll();
      offload().CheckInvariants();
    }
  }
  // That all that is computed of it is its own KV.
  void ExpectRight(const Sequence& sequence) {
    for (int32_t i = 0; i < sequence.computed() / kBlockSize; ++i) {
      const auto ids = sequence.blocks().ids();
      EXPECT_TRUE(engine_.HasKvOf(
          absl::MakeConstSpan(sequence.tokens())
              .subspan(static_cast<size_t>(i * kBlockSize), kBlockSize),
          i * kBlockSize, scheduling::kNoAdapter, ids[i],
          i == 0 ? 0 : ids[i - 1]))
          << "block " << i;
    }
  }

  SimEngine& engine() { return engine_; }
  KvBlocks& blocks() { return blocks_; }
  KvOffload& offload() { return *blocks_.offload; }
  const KvOffload::Stats& stats() { return offload().stats(); }

  bool goes_on = true;  // else jobs stand still
  bool fails = false;   // each write

 private:
  static constexpr double kGoesOn = 1;
  static constexpr double kFails = 0.5;

  SimEngine engine_;
  KvBlocks blocks_;
  SimStore* store_;
};

class KvOffloadTest : public testing::TestWithParam<bool> {
 protected:
  explicit KvOffloadTest(int32_t places = 20) : places_(places) { Restart(); }

  void Restart() {
    worker_.reset();
    worker_.emplace(GetParam(), places_, disk_, &clock_);
  }
  void RestartWith(int32_t places) {
    places_ = places;
    disk_ = std::make_shared<SimDisk>();
    Restart();
  }
  int32_t Stored(const std::vector<TokenId>& prompt,
                 const std::string& salt = "") {
    const auto sequence = worker_->Begin(prompt, salt);
    return worker_->offload().StoredTokens(*sequence, sequence->num_tokens());
  }

  int32_t places_;
  std::shared_ptr<SimDisk> disk_ = std::make_shared<SimDisk>();
  test::ManualClock clock_;
  std::optional<Worker> worker_;
};

TEST_P(KvOffloadTest, WhatIsStoredComesBack) {
  worker_->Run(Prompt(1, 70));
  EXPECT_EQ(worker_->stats().saved_blocks, 4u);
  EXPECT_EQ(worker_->offload().stored_bytes(),
            4 * worker_->engine().kv_layout().block_bytes());
  EXPECT_EQ(worker_->blocks().pool.num_in_use(), 0);
  worker_->Evict();
  // The same beginning, and then others.
  const auto sequence = worker_->Begin(Prompt(2, 75, 0));
  EXPECT_FALSE(worker_->Load(sequence.get()));
  auto again = Prompt(1, 70);
  again.push_back(9);
  const auto loading = worker_->Begin(again);
  ASSERT_TRUE(worker_->Load(loading.get()));
  EXPECT_TRUE(loading->loading());
  EXPECT_EQ(loading->computed(), 0);
  worker_->Finish();
  EXPECT_FALSE(loading->loading());
  EXPECT_EQ(loading->computed(), 64);
  EXPECT_EQ(loading->cached(), 64);
  EXPECT_EQ(loading->prefix().loaded_tokens, 64);
  worker_->ExpectRight(*loading);
  EXPECT_EQ(worker_->stats().loads_done, 1u);
  EXPECT_EQ(worker_->stats().loaded_tokens, 64u);
  EXPECT_EQ(worker_->stats().queried_tokens, 75u + 71u);
  // It is cached now, for others.
  EXPECT_EQ(worker_->blocks().cache.num_blocks(), 4);
  worker_->Compute(loading.get());
  worker_->ExpectRight(*loading);
}

TEST_P(KvOffloadTest, LoadsOnlyWhatTheCacheHasNot) {
  worker_->Run(Prompt(1, 70));
  worker_->Evict();
  const auto first = worker_->Begin(Prompt(1, 33));
  worker_->Compute(first.get());
  const auto second = worker_->Begin(Prompt(1, 70));
  EXPECT_EQ(second->cached(), 32);
  ASSERT_TRUE(worker_->Load(second.get()));
  worker_->Finish();
  EXPECT_EQ(second->computed(), 64);
  EXPECT_EQ(second->prefix().loaded_tokens, 32);
  worker_->ExpectRight(*second);
  // At least one token is computed.
  const auto whole = Prompt(1, 64);
  worker_->blocks().cache.Clear();
  const auto third = worker_->Begin(whole);
  ASSERT_TRUE(worker_->Load(third.get()));
  worker_->Finish();
  EXPECT_EQ(third->computed(), 48);
}

TEST_P(KvOffloadTest, TheNextProcessLoadsIt) {
  worker_->Run(Prompt(1, 70, 32));
  worker_->Run(Prompt(2, 70, 32), "tenant");
  Restart();
  EXPECT_EQ(worker_->offload().stored().num_blocks(), 8);
  worker_->offload().CheckInvariants();
  EXPECT_EQ(Stored(Prompt(1, 70, 32)), 64);
  EXPECT_EQ(Stored(Prompt(1, 70, 32), "tenant"), 32);
  const auto sequence = worker_->Begin(Prompt(2, 70, 32), "tenant");
  ASSERT_TRUE(worker_->Load(sequence.get()));
  worker_->Finish();
  EXPECT_EQ(sequence->computed(), 64);
  worker_->ExpectRight(*sequence);
}

TEST_P(KvOffloadTest, OtherSaltsFindNothing) {
  worker_->Run(Prompt(1, 70), "a");
  worker_->Evict();
  EXPECT_EQ(Stored(Prompt(1, 70), "a"), 64);
  EXPECT_EQ(Stored(Prompt(1, 70), "b"), 0);
  EXPECT_EQ(Stored(Prompt(1, 70)), 0);
}

TEST_P(KvOffloadTest, NothingIsStoredTwice) {
  const auto first = worker_->Begin(Prompt(1, 70));
  worker_->Compute(first.get());
  const auto second = worker_->Begin(Prompt(1, 70));
  worker_->Compute(second.get());
  worker_->offload().Save(*first);
  worker_->offload().Save(*second);  // while the first is under way
  worker_->Finish();
  worker_->offload().Save(*second);
  worker_->Finish();
  EXPECT_EQ(worker_->stats().saved_blocks, 4u);
  EXPECT_EQ(worker_->offload().stored().num_blocks(), 4);
}

TEST_P(KvOffloadTest, WhatIsEvictedBeforeItsTurnIsNotStored) {
  worker_->goes_on = false;
  auto sequence = worker_->Begin(Prompt(1, 96));
  worker_->Compute(sequence.get());
  worker_->offload().Save(*sequence);
  sequence.reset();
  // Pieces under way are held, others are the pool's.
  const auto others = worker_->blocks().pool.Allocate(12);
  ASSERT_TRUE(others.has_value());
  worker_->goes_on = true;
  worker_->Finish();
  EXPECT_GE(worker_->stats().saved_blocks, 1u);
  EXPECT_GE(worker_->stats().dropped_backlog, 1u);
  EXPECT_EQ(worker_->stats().saved_blocks + worker_->stats().dropped_backlog,
            6u);
  EXPECT_EQ(worker_->offload().stored().num_blocks(),
            static_cast<int32_t>(worker_->stats().saved_blocks));
}

TEST_P(KvOffloadTest, TheOldestGoesFirstAndNoneBeforeThoseBehindIt) {
  RestartWith(6);
  worker_->Run(Prompt(1, 50));
  worker_->Run(Prompt(2, 50));
  EXPECT_EQ(worker_->offload().stored().num_blocks(), 6);
  worker_->Run(Prompt(1, 50));  // used again
  worker_->Run(Prompt(3, 20));
  worker_->Evict();
  EXPECT_EQ(Stored(Prompt(1, 50)), 48);
  EXPECT_EQ(Stored(Prompt(2, 50)), 32);
  EXPECT_EQ(Stored(Prompt(3, 20)), 16);
  // In the next process, too.
  Restart();
  worker_->Run(Prompt(4, 40));
  EXPECT_EQ(Stored(Prompt(4, 40)), 32);
  EXPECT_EQ(worker_->offload().stored().num_blocks(), 6);
}

TEST_P(KvOffloadTest, OfWhatIsLargerThanTheStoreTheBeginningIsStored) {
  RestartWith(3);
  worker_->Run(Prompt(1, 96));
  worker_->Evict();
  EXPECT_EQ(Stored(Prompt(1, 96)), 48);
  EXPECT_EQ(worker_->stats().dropped_full, 3u);
  EXPECT_EQ(worker_->stats().saved_blocks, 3u);
}

TEST_P(KvOffloadTest, ADamagedBlockIsNeverUsed) {
  worker_->Run(Prompt(1, 96));
  worker_->Evict();
  for (auto& block : disk_->places) {
    if (block.has_value() && block->what.tokens[0] == 100 + 33) {
      block->damaged = true;
    }
  }
  auto sequence = worker_->Begin(Prompt(1, 96));
  ASSERT_TRUE(worker_->Load(sequence.get()));
  worker_->Finish();
  EXPECT_FALSE(sequence->loading());
  EXPECT_LE(sequence->computed(), 32);
  worker_->ExpectRight(*sequence);
  EXPECT_EQ(worker_->stats().loads_failed, 1u);
  EXPECT_EQ(worker_->offload().stored().num_blocks(), 0);
  worker_->Compute(sequence.get());
  worker_->ExpectRight(*sequence);
  // It begins anew, here and in the next process.
  sequence.reset();
  Restart();
  EXPECT_EQ(worker_->offload().stored().num_blocks(), 0);
}

TEST_P(KvOffloadTest, AWriteThatFailsIsNotStored) {
  worker_->fails = true;
  worker_->Run(Prompt(1, 70));
  EXPECT_EQ(worker_->stats().saved_blocks, 0u);
  EXPECT_EQ(worker_->stats().dropped_error, 4u);
  EXPECT_EQ(worker_->offload().stored().num_blocks(), 0);
  worker_->fails = false;
  worker_->Run(Prompt(1, 70));
  EXPECT_EQ(worker_->stats().saved_blocks, 4u);
}

TEST_P(KvOffloadTest, ALoadThatTakesTooLongIsGivenUp) {
  worker_->Run(Prompt(1, 60));
  worker_->Evict();
  worker_->goes_on = false;
  const auto sequence = worker_->Begin(Prompt(1, 60));
  ASSERT_TRUE(worker_->Load(sequence.get()));
  const std::vector<BlockId> before = {sequence->blocks().ids().begin(),
                                       sequence->blocks().ids().end()};
  clock_.Advance(absl::Seconds(4));
  worker_->Finish();
  EXPECT_TRUE(sequence->loading());
  clock_.Advance(absl::Seconds(2));
  worker_->Finish();
  EXPECT_FALSE(sequence->loading());
  EXPECT_EQ(sequence->computed(), 0);
  EXPECT_EQ(worker_->stats().loads_given_up, 1u);
  for (const BlockId block : sequence->blocks().ids()) {
    EXPECT_THAT(before, testing::Not(testing::Contains(block)));
  }
  // While the store hangs, nothing more is asked of it.
  worker_->Compute(sequence.get());
  sequence->blocks().Release();
  worker_->Evict();
  const auto other = worker_->Begin(Prompt(1, 60));
  EXPECT_FALSE(worker_->Load(other.get()));
  worker_->Compute(other.get());
  // What it writes then touches nobody's blocks.
  worker_->goes_on = true;
  worker_->Finish();
  worker_->ExpectRight(*other);
  other->blocks().Release();
  EXPECT_EQ(worker_->blocks().pool.num_in_use(), 0);
  worker_->Evict();
  const auto last = worker_->Begin(Prompt(1, 60));
  EXPECT_TRUE(worker_->Load(last.get()));
  worker_->Finish();
}

TEST_P(KvOffloadTest, BlocksOfASequenceThatIsOverAreHeldWhileTheyAreRead) {
  worker_->Run(Prompt(1, 60));
  worker_->Evict();
  worker_->goes_on = false;
  auto sequence = worker_->Begin(Prompt(1, 60));
  ASSERT_TRUE(worker_->Load(sequence.get()));
  worker_->offload().StopLoading(sequence.get());
  EXPECT_FALSE(sequence->loading());
  sequence.reset();
  EXPECT_EQ(worker_->blocks().pool.num_in_use(), 3);
  worker_->goes_on = true;
  worker_->Finish();
  EXPECT_EQ(worker_->blocks().pool.num_in_use(), 0);
  EXPECT_EQ(worker_->stats().loads_done, 0u);
}

TEST_P(KvOffloadTest, WhatIsFasterComputedIsNotLoaded) {
  worker_->Run(Prompt(1, 60));
  const auto load_in = [&](absl::Duration time, const StepCost& cost) {
    worker_->Evict();
    const auto sequence = worker_->Begin(Prompt(1, 60));
    if (!worker_->Load(sequence.get(), cost)) return false;
    clock_.Advance(time);
    worker_->Finish();
    EXPECT_EQ(sequence->computed(), 48);
    return true;
  };
  const StepCost fast = {.per_token = 1e-3};  // 48 ms for 48 tokens
  const StepCost slow = {.per_token = 1e-2};
  EXPECT_TRUE(load_in(absl::Milliseconds(200), fast)) << "nothing is known yet";
  EXPECT_FALSE(load_in(absl::Milliseconds(200), fast));
  EXPECT_EQ(worker_->stats().loads_skipped, 1u);
  EXPECT_TRUE(load_in(absl::Milliseconds(200), slow));
  // It tries again in the end: the disk may be faster now.
  int tries = 1;
  while (!load_in(absl::Milliseconds(1), fast) && tries < 100) ++tries;
  EXPECT_GT(tries, 5);
  EXPECT_LT(tries, 100);
}

TEST_P(KvOffloadTest, ClearForgetsWhatIsUnderWay) {
  worker_->Run(Prompt(1, 60));
  worker_->Evict();
  worker_->goes_on = false;
  auto loading = worker_->Begin(Prompt(1, 60));
  ASSERT_TRUE(worker_->Load(loading.get()));
  auto saving = worker_->Begin(Prompt(2, 33));
  worker_->Compute(saving.get());
  worker_->offload().Save(*saving);
  worker_->blocks().ClearPrefixes();
  worker_->goes_on = true;
  worker_->Finish();
  EXPECT_FALSE(loading->loading());
  EXPECT_EQ(loading->computed(), 0) << "that may be what is wrong";
  EXPECT_EQ(worker_->offload().stored().num_blocks(), 0);
  loading.reset();
  saving.reset();
  Restart();
  EXPECT_EQ(worker_->offload().stored().num_blocks(), 0);
}

TEST_P(KvOffloadTest, FlushWritesWhatIsLeft) {
  const auto sequence = worker_->Begin(Prompt(1, 96));
  worker_->Compute(sequence.get());
  worker_->offload().Save(*sequence);
  worker_->offload().Flush(clock_.Now() + absl::Seconds(1));
  EXPECT_EQ(worker_->stats().saved_blocks, 6u);
}

INSTANTIATE_TEST_SUITE_P(, KvOffloadTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "OnDevice" : "InHostMemory";
                         });

}  // namespace
}  // namespace baton::worker
