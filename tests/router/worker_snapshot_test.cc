#include "router/worker_snapshot.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace baton::router {
namespace {

TEST(WorkerSnapshotTest, NumbersOfAnySizeAreSafe) {
  v1::WorkerHello hello;
  hello.set_total_blocks(std::numeric_limits<uint32_t>::max());
  hello.set_max_queued_tokens(std::numeric_limits<uint64_t>::max());
  hello.set_token_budget(std::numeric_limits<uint32_t>::max());
  hello.set_kv_bytes_per_token(std::numeric_limits<uint64_t>::max());
  hello.set_itl_target_ms(std::nan(""));
  hello.set_output_reserve(std::numeric_limits<uint32_t>::max());
  const scheduling::WorkerSnapshot snapshot = IdleSnapshot(
      scheduling::WorkerId{3}, scheduling::WorkerRole::kPrefill, hello);
  EXPECT_EQ(snapshot.total_blocks, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(snapshot.free_blocks, snapshot.total_blocks);
  EXPECT_EQ(snapshot.token_budget, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(snapshot.max_queued_tokens, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(snapshot.kv_bytes_per_token, int64_t{1} << 40);
  EXPECT_EQ(snapshot.itl_target_seconds, 0);
  EXPECT_EQ(snapshot.output_reserve, std::numeric_limits<int32_t>::max());
}

TEST(WorkerSnapshotTest, AReportTakesThePlaceOfWhatWasPlaced) {
  scheduling::WorkerSnapshot snapshot;
  snapshot.placed_sequences = 3;
  snapshot.placed_blocks = 30;
  snapshot.placed_prompts = 3;
  snapshot.placed_tokens = 300;
  v1::LoadReport load;
  load.set_running(2);
  load.set_queued_prompts(1);
  load.set_context_tokens(700);
  load.mutable_step_cost()->set_fixed(0.25);
  load.mutable_step_cost()->set_per_token(-1);
  load.mutable_step_cost()->set_per_context_token(std::nan(""));
  load.mutable_step_cost()->set_per_sequence(
      std::numeric_limits<double>::infinity());
  TakeReport(load, &snapshot);
  EXPECT_EQ(snapshot.running, 2);
  EXPECT_EQ(snapshot.queued_prompts, 1);
  EXPECT_EQ(snapshot.context_tokens, 700);
  EXPECT_EQ(snapshot.placed_sequences, 0);
  EXPECT_EQ(snapshot.placed_blocks, 0);
  EXPECT_EQ(snapshot.placed_prompts, 0);
  EXPECT_EQ(snapshot.placed_tokens, 0);
  EXPECT_EQ(snapshot.step_cost.fixed, 0.25);
  EXPECT_EQ(snapshot.step_cost.per_token, 0);
  EXPECT_EQ(snapshot.step_cost.per_context_token, 0);
  EXPECT_EQ(snapshot.step_cost.per_sequence, 3600);
  load.mutable_step_cost()->set_per_context_token(3e-7);
  load.mutable_step_cost()->set_per_prompt_context_token(2e-8);
  TakeReport(load, &snapshot);
  EXPECT_EQ(snapshot.step_cost.per_prompt_context_token, 2e-8);
  // A worker of an earlier version does not tell the two apart.
  load.mutable_step_cost()->clear_per_prompt_context_token();
  TakeReport(load, &snapshot);
  EXPECT_EQ(snapshot.step_cost.per_prompt_context_token, 3e-7);
  load.clear_step_cost();
  TakeReport(load, &snapshot);
  EXPECT_FALSE(snapshot.step_cost.known());
}

}  // namespace
}  // namespace baton::router
