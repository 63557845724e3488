// What tests of the CUDA backend stand on, on a GPU and on the device that the
// CPU plays alike: which of them is there is a matter of what a program is
// linked with. Where there is none, tests skip themselves and say why.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/ids.h"
#include "common/log.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/matmul.h"
#include "engine/engine.h"
#include "scheduling/step_plan.h"

namespace baton::engine::cuda {

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override;

  // A CPU plays the device: small sizes.
  bool emulated() const { return emulated_; }
  // Sizes that a GPU runs in no time, and the host checks in seconds: not where
  // BATON_TEST_SMALL is set, as under a checker.
  bool large() const {
    return !emulated_ && std::getenv("BATON_TEST_SMALL") == nullptr;
  }
  // Those that it has.
  const DeviceKernels& kernels() const { return kernels_; }
  Stream& stream() { return *stream_; }

  // Device memory with these values; it lives as long as the test.
  template <typename T>
  T* Put(const std::vector<T>& values) {
    T* const device = Take<T>(static_cast<int64_t>(values.size()));
    if (!values.empty()) {
      stream_->CopyToDevice(device, values.data(), Bytes(values));
    }
    stream_->Wait();
    return device;
  }
  // Device memory whose bytes are all 0xff: NaN as floats.
  template <typename T>
  T* Take(int64_t count) {
    auto buffer =
        DeviceBuffer::Allocate(count * int64_t{sizeof(T)}, "a test's array");
    CHECK(buffer.ok()) << buffer.status();
    buffers_.push_back(*std::move(buffer));
    if (count > 0) {
      stream_->Fill(buffers_.back().data(), 0xff, count * int64_t{sizeof(T)});
    }
    return buffers_.back().as<T>();
  }
  template <typename T>
  std::vector<T> Get(const T* device, int64_t count) {
    std::vector<T> values(count);
    stream_->CopyToHost(values.data(), device, Bytes(values));
    stream_->Wait();
    return values;
  }

  // A page of a staged block, wherever it lies.
  std::vector<std::byte> ReadStaged(const StagedMemory& staged, int32_t layer,
                                    BlockId block);
  void WriteStaged(const StagedMemory& staged, int32_t layer, BlockId block,
                   const std::vector<std::byte>& page);

 private:
  template <typename T>
  static int64_t Bytes(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size() * sizeof(T));
  }

  bool emulated_ = false;
  DeviceKernels kernels_;
  std::unique_ptr<Stream> stream_;
  std::vector<DeviceBuffer> buffers_;
};

inline void NoHook(int32_t) {}

// Values of about 1 that differ for each seed, as bfloat16 and exactly these as
// float.
std::vector<uint16_t> RandomBf16(int64_t count, uint32_t seed,
                                 float scale = 1.0f);
std::vector<float> Floats(const std::vector<uint16_t>& bf16);

// Tokens below 256, others for each seed.
std::vector<TokenId> Prompt(int32_t length, uint32_t seed);
std::vector<BlockId> BlockRange(BlockId first, int32_t count);

// The part of a plan that runs tokens [first, end) of `all`, sampling at the
// end of `all`. Greedy, and the logits come back. `all` and `blocks` outlive
// it.
scheduling::PlannedSequence Part(uint64_t id, const std::vector<TokenId>& all,
                                 int32_t first, int32_t end,
                                 const std::vector<BlockId>& blocks);

// Names of the small random models: "llama", "odd" (odd sizes everywhere),
// "mistral" (a window), "qwen2" (QKV bias), "qwen3" (QK norm), "wide" (more
// than one chunk of inputs, head_dim 64), "moe" (a layer without experts, and
// one with), "latent" (the same with latent attention).
const std::vector<std::string>& ModelNames();
// The directory of one, there while tests run.
std::string ModelDirOf(const std::string& name);

EngineOptions OptionsFor(const std::string& dir, int32_t block_size = 16);
// Small buffers, and all kernels that the device has.
ForwardPassOptions SmallPass();
std::unique_ptr<CudaEngine> MakeCuda(
    const EngineOptions& options,
    const ForwardPassOptions& pass_options = SmallPass());
std::unique_ptr<CudaEngine> MakeCuda(const std::string& dir,
                                     const ForwardPassOptions& pass_options,
                                     int32_t block_size = 16,
                                     const std::string& weights = "auto");
// The reference.
std::unique_ptr<Engine> MakeCpu(const std::string& dir,
                                const std::string& weights = "auto");

// The logits after the last of `tokens`, all run in one step.
std::vector<float> RunWhole(Engine& engine, const std::vector<TokenId>& tokens,
                            const std::vector<BlockId>& blocks,
                            int32_t adapter = scheduling::kNoAdapter);

// The logits after the last of `tokens`, whose KV is there but for that one's,
// in a decode step beside count - 1 others, whose only token is the first of
// `other`; they have the blocks behind `blocks`.
std::vector<float> RunInBatch(Engine& engine,
                              const std::vector<TokenId>& tokens,
                              const std::vector<BlockId>& blocks,
                              const std::vector<TokenId>& other, int32_t count);

// Equal to the bit, and not empty.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

// |a - b| / |b|, in the Euclidean norm. NaN where one is.
double RelativeError(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace baton::engine::cuda
