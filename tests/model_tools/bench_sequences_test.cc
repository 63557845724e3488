#include "model_tools/bench_sequences.h"

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_factory.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::model_tools {
namespace {

class BenchSequencesTest : public testing::Test {
 protected:
  void SetUp() override {
    engine::EngineOptions options;
    options.model_dir = scratch_.path() + "/model";
    ASSERT_TRUE(test::WriteTinyModel(options.model_dir).ok());
    options.num_threads = 1;
    options.kv_memory_bytes = int64_t{4} << 20;
    auto engine = engine::CreateEngine(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  std::vector<TokenId> Tokens(const BenchSequences& sequences, int32_t i) {
    const auto tokens = sequences.tokens(i);
    return {tokens.begin(), tokens.end()};
  }

  test::ScratchDir scratch_;
  std::unique_ptr<engine::Engine> engine_;
};

TEST_F(BenchSequencesTest, ChunksDoNotChangeWhatComesOut) {
  BenchSequences whole(engine_.get(), 1, 60), cut(engine_.get(), 1, 60);
  whole.Prefill(50, 2048);
  for (int i = 0; i < 5; ++i) whole.DecodeStep();
  const std::vector<TokenId> expected = Tokens(whole, 0);
  EXPECT_EQ(expected.size(), 56u);
  cut.Prefill(50, 7);
  for (int i = 0; i < 5; ++i) cut.DecodeStep();
  EXPECT_EQ(Tokens(cut, 0), expected);
}

TEST_F(BenchSequencesTest, RewindingRepeats) {
  BenchSequences sequences(engine_.get(), 1, 60);
  sequences.Prefill(20, 2048);
  for (int i = 0; i < 5; ++i) sequences.DecodeStep();
  const std::vector<TokenId> first = Tokens(sequences, 0);
  sequences.Rewind(20);
  EXPECT_EQ(sequences.tokens(0).size(), 21u);
  for (int i = 0; i < 5; ++i) sequences.DecodeStep();
  EXPECT_EQ(Tokens(sequences, 0), first);
  sequences.Rewind(0);
  sequences.Prefill(20, 3);
  for (int i = 0; i < 5; ++i) sequences.DecodeStep();
  EXPECT_EQ(Tokens(sequences, 0), first);
}

// The copies decode from KV of their own to the same token, which is then
// shifted in each.
TEST_F(BenchSequencesTest, CopiesGoOnLikeTheFirst) {
  const int32_t vocabulary = engine_->model().vocab_size;
  for (const int32_t length : {1, 15, 16, 17, 31, 37, 50, 59}) {
    BenchSequences sequences(engine_.get(), 3, 81);
    sequences.Prefill(length, 16);
    sequences.CopyFirstToAll();
    sequences.DecodeStep();
    const int32_t index = length + 1;
    std::vector<TokenId> sampled;
    for (int32_t i = 0; i < 3; ++i) {
      ASSERT_EQ(sequences.tokens(i).size(), static_cast<size_t>(index + 1));
      const TokenId shift = sequences.RandomToken(i, index);
      sampled.push_back((sequences.tokens(i)[index] + vocabulary - shift) %
                        vocabulary);
    }
    EXPECT_EQ(sampled[1], sampled[0]) << length;
    EXPECT_EQ(sampled[2], sampled[0]) << length;
    for (int i = 0; i < 20; ++i) sequences.DecodeStep();
    EXPECT_NE(Tokens(sequences, 1), Tokens(sequences, 0));
    EXPECT_NE(Tokens(sequences, 2), Tokens(sequences, 1));
  }
}

TEST_F(BenchSequencesTest, DecodesFromNothing) {
  BenchSequences sequences(engine_.get(), 2, 10);
  for (int i = 0; i < 10; ++i) sequences.DecodeStep();
  EXPECT_EQ(sequences.tokens(1).size(), 11u);
  for (const TokenId token : sequences.tokens(1)) {
    EXPECT_GE(token, 0);
    EXPECT_LT(token, engine_->model().vocab_size);
  }
}

}  // namespace
}  // namespace baton::model_tools
