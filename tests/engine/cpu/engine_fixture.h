// What the tests of the whole CPU engine stand on: small random models, engines
// that run them, and steps to run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "common/ids.h"
#include "engine/cpu/kernel_choice.h"
#include "engine/engine.h"
#include "scheduling/step_plan.h"

namespace baton::engine::cpu {

inline void NoHook(int32_t) {}

// Tokens below 256, others for each seed.
std::vector<TokenId> Prompt(int32_t length, uint32_t seed);

std::vector<BlockId> BlockRange(BlockId first, int32_t count);

// The part of a plan that runs tokens [first, end) of `all`, sampling at the
// end of `all`. Greedy, and the logits come back. `all` and `blocks` outlive
// it.
scheduling::PlannedSequence Part(uint64_t id, const std::vector<TokenId>& all,
                                 int32_t first, int32_t end,
                                 const std::vector<BlockId>& blocks);

// How weights and KV are held.
struct Dtypes {
  const char* weights = "bf16";
  const char* kv = "bf16";
  const char* drafts = "";  // of EngineOptions::draft_weights
};

std::unique_ptr<Engine> MakeEngine(const std::string& dir,
                                   const std::string& isa,
                                   const Dtypes& dtypes = {},
                                   int32_t num_threads = 2,
                                   int32_t block_size = 16);

// The logits after the last of `tokens`, all run in one step.
std::vector<float> RunWhole(Engine& engine, const std::vector<TokenId>& tokens,
                            const std::vector<BlockId>& blocks,
                            int32_t adapter = scheduling::kNoAdapter);

// Equal to the bit, and not empty.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

// The directory of "llama", "odd" (odd sizes everywhere), "mistral", "qwen2",
// "qwen3" or "experts" (a mixture of them, odd sizes, too). It is there while
// tests run.
std::string EngineModelDir(const std::string& name);

// A model, a set of kernels, and how weights and KV are held.
using EngineCase = std::tuple<std::string, const Kernels*, Dtypes>;

// An engine of each case, made by the test. Use with INSTANTIATE_TEST_SUITE_P,
// EngineCases() and EngineCaseName.
class EngineFixture : public testing::TestWithParam<EngineCase> {
 protected:
  Dtypes dtypes() const { return std::get<2>(GetParam()); }
  std::unique_ptr<Engine> Make(int32_t num_threads = 2,
                               int32_t block_size = 16) const {
    return MakeEngine(dir(), isa(), dtypes(), num_threads, block_size);
  }
  std::string dir() const { return EngineModelDir(std::get<0>(GetParam())); }
  std::string isa() const { return std::get<1>(GetParam())->name; }
};

// Every model on every set of kernels of this CPU.
inline auto EngineCases() {
  return testing::Combine(
      testing::Values("llama", "odd", "mistral", "qwen2", "qwen3", "experts"),
      testing::ValuesIn(AvailableKernels().begin(), AvailableKernels().end()),
      testing::Values(Dtypes{"bf16", "bf16"}, Dtypes{"int8", "bf16"},
                      Dtypes{"int4", "int8"}));
}

// "odd_avx2_int8_kv_bf16".
std::string EngineCaseName(const testing::TestParamInfo<EngineCase>& info);

}  // namespace baton::engine::cpu
