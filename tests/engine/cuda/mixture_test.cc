// Mixtures of experts on a device, beyond what every model is tested for.
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cuda/cuda_engine.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cuda {
namespace {

using scheduling::StepPlan;
using scheduling::StepResult;
using test::TinyModelOptions;

class MixtureTest : public DeviceTest {
 protected:
  std::string Write(const TinyModelOptions& options) {
    const std::string dir = scratch_.path() + "/model";
    const absl::Status status = test::WriteTinyModel(dir, options);
    CHECK(status.ok()) << status;
    return dir;
  }

 private:
  const test::ScratchDir scratch_;
};

// Three layers with experts: a prompt's rows go through two of them and its
// last one through the third.
TEST_F(MixtureTest, CountsTheExpertsThatAStepReads) {
  TinyModelOptions model;
  model.architecture = "Qwen3MoeForCausalLM";
  model.layers = 4;
  model.experts = 12;
  model.experts_per_token = 3;
  model.first_layer_dense = true;
  const std::string dir = Write(model);
  const std::vector<TokenId> tokens = Prompt(41, 6);
  const std::vector<BlockId> blocks = BlockRange(0, 3);
  StepPlan prompt;
  prompt.sequences = {Part(1, tokens, 0, 40, blocks)};
  StepPlan step;
  step.sequences = {Part(1, tokens, 40, 41, blocks)};
  for (const bool graphs : {false, true}) {
    ForwardPassOptions options = SmallPass();
    options.use_graphs = graphs;
    options.max_rows = 64;
    const auto engine = MakeCuda(dir, options);
    // No row has logits: the last layer's experts are not asked.
    const StepResult without = engine->Execute(prompt, NoHook);
    EXPECT_EQ(without.expert_rows, 2 * 40 * 3);
    EXPECT_GE(without.expert_reads, 2 * 3);
    EXPECT_LE(without.expert_reads, 2 * 12);
    // The first one runs as it is recorded, the others are launched.
    for (int32_t i = 0; i < 3; ++i) {
      const StepResult result = engine->Execute(step, NoHook);
      EXPECT_EQ(result.expert_rows, 3 * 3);
      EXPECT_EQ(result.expert_reads, 3 * 3) << i << " " << graphs;
    }
    StepPlan whole;
    whole.sequences = {Part(1, tokens, 0, 41, blocks)};
    const StepResult all = engine->Execute(whole, NoHook);
    EXPECT_EQ(all.expert_rows, (2 * 41 + 1) * 3);
    // Passes of fewer rows read experts again.
    options.max_rows = 7;
    const StepResult cut = MakeCuda(dir, options)->Execute(whole, NoHook);
    EXPECT_EQ(cut.expert_rows, all.expert_rows);
    EXPECT_GT(cut.expert_reads, all.expert_reads);
  }
  const auto dense = MakeCuda(ModelDirOf("llama"), SmallPass());
  EXPECT_EQ(dense->Execute(prompt, NoHook).expert_rows, 0);
  EXPECT_EQ(dense->Execute(step, NoHook).expert_reads, 0);
}

// Rows that a graph has room for, beyond those of a step, read no experts: of a
// batch of five each reads three, in a graph of eight rows.
TEST_F(MixtureTest, RoomInAGraphReadsNothing) {
  TinyModelOptions model;
  model.architecture = "MixtralForCausalLM";
  model.layers = 1;
  model.experts = 64;
  model.experts_per_token = 3;
  const auto engine = MakeCuda(Write(model), SmallPass());
  const std::vector<TokenId> tokens = Prompt(9, 6);
  std::vector<std::vector<BlockId>> blocks;
  StepPlan plan;
  for (int32_t i = 0; i < 5; ++i) blocks.push_back(BlockRange(i, 1));
  for (int32_t i = 0; i < 5; ++i) {
    plan.sequences.push_back(Part(1 + i, tokens, 0, 1, blocks[i]));
    plan.sequences.back().sample = true;
    plan.sequences.back().history = absl::MakeSpan(tokens).first(1);
  }
  for (int32_t i = 0; i < 3; ++i) {
    const StepResult result = engine->Execute(plan, NoHook);
    EXPECT_EQ(result.expert_rows, 5 * 3);
    // All say the same.
    EXPECT_EQ(result.expert_reads, 3);
  }
}

// Files that have all experts of a layer in one tensor, or one for each.
TEST_F(MixtureTest, GgufFilesAreTheDirectory) {
  for (const char* const architecture :
       {"MixtralForCausalLM", "Glm4MoeForCausalLM"}) {
    TinyModelOptions model;
    model.architecture = architecture;
    const std::string dir = Write(model);
    const std::vector<TokenId> tokens = Prompt(33, 8);
    const std::vector<BlockId> blocks = BlockRange(0, 3);
    const auto engine = MakeCuda(dir, SmallPass());
    const std::vector<float> expected = RunWhole(*engine, tokens, blocks);
    for (const bool apart : {false, true}) {
      const std::string file = dir + "/model.gguf";
      std::ofstream(file, std::ios::binary)
          << test::GgufOfModelDir(dir, apart).Finish();
      EXPECT_TRUE(SameBits(
          RunWhole(*MakeCuda(file, SmallPass()), tokens, blocks), expected))
          << architecture << " " << apart;
    }
  }
}

}  // namespace
}  // namespace baton::engine::cuda
