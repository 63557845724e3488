// Prompts whose beginning is kept besides the prefix cache: while it is loaded
// others run, what comes next is loaded ahead, and nobody waits for it who need
// not.
#include "scheduling/prefix_loader.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_pool.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/prefill_scheduler.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/sequence.h"

namespace baton::scheduling::prefix_loader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int32_t kBlock = 4;

// Has the first tokens of prompts by their number.
class FakeLoader final : public PrefixLoader {
 public:
  int32_t StoredTokens(const Sequence& sequence,
                       int32_t max_tokens) const override {
    ++asked;
    const auto it = stored.find(sequence.id());
    return it == stored.end() ? 0 : std::min(it->second, max_tokens);
  }
  bool Load(Sequence* sequence, const StepCost&, int32_t) override {
    EXPECT_GT(sequence->blocks().size(), 0);
    EXPECT_FALSE(sequence->loading());
    if (StoredTokens(*sequence, sequence->num_tokens() - 1) <=
        sequence->computed()) {
      return false;
    }
    loading.push_back(sequence);
    sequence->SetLoading(true);
    return true;
  }
  // The first of those that load.
  void Finish() {
    Sequence* const sequence = loading.front();
    loading.erase(loading.begin());
    sequence->SetLoading(false);
    sequence->AdoptCached(stored.at(sequence->id()) - sequence->computed());
  }

  std::map<SequenceId, int32_t> stored;
  std::vector<Sequence*> loading;
  mutable int asked = 0;
};

class PrefixLoaderTest : public testing::Test {
 protected:
  explicit PrefixLoaderTest(int32_t blocks = 100) : pool_(blocks) {}

  std::unique_ptr<Sequence> Make(uint64_t id, int32_t length) {
    std::vector<TokenId> tokens(static_cast<size_t>(length),
                                static_cast<TokenId>(id));
    return std::make_unique<Sequence>(SequenceId{id}, std::move(tokens), length,
                                      SamplingParams(), StopParams());
  }
  void Add(uint64_t id, int32_t length, int32_t stored = 0) {
    auto& sequence = sequences_[id];
    sequence = Make(id, length);
    if (stored > 0) loader_.stored[SequenceId{id}] = stored;
    scheduler_.Add(sequence.get());
  }
  using Chunks = std::vector<std::pair<uint64_t, int64_t>>;
  // A step: (sequence, tokens) of each chunk.
  static Chunks ChunksOf(const StepPlan& plan) {
    Chunks chunks;
    for (const PlannedSequence& s : plan.sequences) {
      chunks.emplace_back(static_cast<uint64_t>(s.sequence), s.tokens.size());
    }
    return chunks;
  }
  Chunks Step() {
    scheduler_.CheckInvariants();
    const StepPlan plan = scheduler_.Plan();
    for (const PlannedSequence& s : plan.sequences) {
      Sequence* const sequence =
          sequences_.at(static_cast<uint64_t>(s.sequence)).get();
      EXPECT_FALSE(sequence->loading());
      sequence->CommitComputed(static_cast<int32_t>(s.tokens.size()));
      if (sequence->uncomputed() == 0) scheduler_.Remove(s.sequence);
    }
    return ChunksOf(plan);
  }

  BlockPool pool_;
  PrefixCache cache_{{.block_size = kBlock}, &pool_};
  FakeLoader loader_;
  PrefillScheduler scheduler_{
      {.token_budget = 16, .block_size = kBlock}, &pool_, &cache_, &loader_};
  std::map<uint64_t, std::unique_ptr<Sequence>> sequences_;
};

TEST_F(PrefixLoaderTest, OthersRunWhileAPromptIsLoaded) {
  Add(1, 40, /*stored=*/36);
  Add(2, 20);
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 16)));
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 4)));
  EXPECT_THAT(Step(), IsEmpty()) << "nothing else is there";
  EXPECT_EQ(scheduler_.QueuedTokens(), 40);
  loader_.Finish();
  // Only the rest.
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 4)));
  EXPECT_EQ(sequences_[1]->cached(), 36);
  EXPECT_EQ(scheduler_.num_waiting(), 0);
}

TEST_F(PrefixLoaderTest, TheNextOnesAreLoadedAhead) {
  Add(1, 40);
  Add(2, 40, /*stored=*/36);
  Add(3, 40);
  Add(4, 40, /*stored=*/36);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 16)));
  ASSERT_EQ(loader_.loading.size(), 1u) << "the next two are looked at";
  EXPECT_EQ(loader_.loading[0], sequences_[2].get());
  // Found to have nothing: not asked for in each step.
  Step();
  const int asked = loader_.asked;
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 8), Pair(3, 8)));
  loader_.Finish();
  EXPECT_LE(loader_.asked, asked + 3);
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 4), Pair(3, 12)));
}

TEST_F(PrefixLoaderTest, NoMoreAreLoadedAheadWhileTheseWait) {
  Add(1, 64);
  for (const uint64_t id : {2, 3, 4, 5}) Add(id, 40, /*stored=*/36);
  const auto blocks = [this] {
    std::vector<int32_t> blocks;
    for (const auto& [id, sequence] : sequences_) {
      blocks.push_back(sequence->blocks().size());
    }
    return blocks;
  };
  for (int step = 0; step < 3; ++step) {
    EXPECT_THAT(Step(), ElementsAre(Pair(1, 16)));
    EXPECT_THAT(blocks(), ElementsAre(16, 10, 10, 0, 0)) << step;
    // Loaded or not.
    if (!loader_.loading.empty()) loader_.Finish();
  }
  // One that is cancelled makes room for another.
  scheduler_.Remove(SequenceId{3});
  sequences_.erase(3);
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 16)));
  EXPECT_THAT(blocks(), ElementsAre(16, 10, 10, 0));
  // So does one whose turn has come.
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 4)));
  EXPECT_THAT(blocks(), ElementsAre(16, 10, 10, 10));
}

TEST_F(PrefixLoaderTest, ACancelledPromptLeavesNothingBehind) {
  Add(1, 40, /*stored=*/36);
  EXPECT_THAT(Step(), IsEmpty());
  scheduler_.Remove(SequenceId{1});
  loader_.loading.clear();
  sequences_.erase(1);
  EXPECT_EQ(pool_.num_in_use(), 0);
  EXPECT_THAT(Step(), IsEmpty());
}

class FewBlocksTest : public PrefixLoaderTest {
 protected:
  FewBlocksTest() : PrefixLoaderTest(/*blocks=*/12) {}
};

TEST_F(FewBlocksTest, NothingIsLoadedAheadOfAPromptThatWaitsForBlocks) {
  Add(1, 20);                 // five blocks
  Add(2, 40);                 // ten: will have to wait
  Add(3, 20, /*stored=*/16);  // five
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 16)));
  EXPECT_EQ(loader_.loading.size(), 1u) << "the second has not asked yet";
  EXPECT_THAT(Step(), ElementsAre(Pair(1, 4)));
  sequences_.erase(1);
  Add(4, 20, /*stored=*/16);
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(scheduler_.blocks_wanted(), 10);
  EXPECT_EQ(loader_.loading.size(), 1u) << "there is room for the fourth";
  loader_.Finish();
  EXPECT_THAT(Step(), ElementsAre(Pair(3, 4)));
  sequences_.erase(3);
  EXPECT_THAT(Step(), ElementsAre(Pair(2, 16)));
}

TEST_F(PrefixLoaderTest, StreamsRunBesideAPromptThatIsLoaded) {
  DecodeScheduler decode({.token_budget = 64, .block_size = kBlock});
  const auto stream = Make(1, 9);
  stream->blocks() = *pool_.Allocate(4);
  stream->AdoptComputed(8);
  const auto prompt = Make(2, 40);
  prompt->blocks() = *pool_.Allocate(10);
  loader_.stored[prompt->id()] = 36;
  ASSERT_TRUE(loader_.Load(prompt.get(), StepCost(), 64));
  const auto other = Make(3, 8);
  other->blocks() = *pool_.Allocate(2);
  for (Sequence* s : {stream.get(), prompt.get(), other.get()}) decode.Add(s);
  EXPECT_THAT(ChunksOf(decode.Plan()), ElementsAre(Pair(1, 1), Pair(3, 8)));
  EXPECT_THAT(ChunksOf(decode.Plan()), ElementsAre(Pair(1, 1), Pair(3, 8)));
  loader_.Finish();
  EXPECT_THAT(ChunksOf(decode.Plan()),
              ElementsAre(Pair(1, 1), Pair(2, 4), Pair(3, 8)));
  decode.CheckInvariants();
}

}  // namespace
}  // namespace baton::scheduling::prefix_loader_test
