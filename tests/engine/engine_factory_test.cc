#include "engine/engine_factory.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/process/memory.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine {
namespace {

using testing::HasSubstr;

class EngineFactoryTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.model_dir = scratch_.path() + "/model";
    options_.kv_memory_bytes = 1 << 20;
    options_.num_threads = 1;
    ASSERT_TRUE(test::WriteTinyModel(options_.model_dir).ok());
  }

  void ExpectError(absl::StatusCode code, const std::string& text) {
    const auto engine = CreateEngine(options_);
    EXPECT_EQ(engine.status().code(), code) << engine.status();
    EXPECT_THAT(std::string(engine.status().message()), HasSubstr(text));
  }

  test::ScratchDir scratch_;
  EngineOptions options_;
};

TEST_F(EngineFactoryTest, MakesAnEngine) {
  const auto engine = CreateEngine(options_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_THAT((*engine)->backend_name(), testing::StartsWith("cpu-"));
  EXPECT_EQ((*engine)->model_identity().size(), 32u);
  EXPECT_EQ((*engine)->model().num_layers, 2);
  const KvLayout& layout = (*engine)->kv_layout();
  EXPECT_EQ(layout.block_size, 16);
  // 2 layers, 2 heads, K and V, 16 tokens of 16 values of 2 bytes.
  EXPECT_EQ(layout.block_bytes(), 2 * 2 * 2 * 16 * 16 * 2);
  EXPECT_EQ(layout.num_blocks, (1 << 20) / layout.block_bytes());
  const absl::Span<std::byte> memory = (*engine)->kv_memory();
  EXPECT_EQ(static_cast<int64_t>(memory.size()), layout.total_bytes());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 4096, 0u);
}

TEST_F(EngineFactoryTest, NamesTheOptionThatIsWrong) {
  const EngineOptions good = options_;
  options_.backend = "tpu";
  ExpectError(absl::StatusCode::kInvalidArgument, "backend: \"tpu\"");
  options_ = good;
  options_.block_size = 12;
  ExpectError(absl::StatusCode::kInvalidArgument, "block_size: 12");
  options_ = good;
  options_.tensor_parallel = 0;
  ExpectError(absl::StatusCode::kInvalidArgument, "tensor_parallel: 0");
  options_.tensor_parallel = 2;
  ExpectError(absl::StatusCode::kUnimplemented,
              "tensor_parallel: the cpu backend");
  options_ = good;
  options_.num_threads = -1;
  ExpectError(absl::StatusCode::kInvalidArgument, "num_threads: -1");
  options_ = good;
  options_.cpu_isa = "sse9";
  ExpectError(absl::StatusCode::kInvalidArgument, "cpu_isa: \"sse9\"");
  options_ = good;
  options_.kv_memory_bytes = -1;
  ExpectError(absl::StatusCode::kInvalidArgument, "kv_memory_bytes: -1");
  options_ = good;
  options_.weights = "int3";
  ExpectError(absl::StatusCode::kInvalidArgument,
              "weights: \"int3\" is not auto, bf16, fp8, int8, int4 or mxfp4");
  options_.weights = "fp8";
  ExpectError(
      absl::StatusCode::kUnimplemented,
      "weights: the cpu backend holds bf16, int8, int4 or mxfp4, not fp8");
  options_ = good;
  options_.draft_weights = "int3";
  ExpectError(absl::StatusCode::kInvalidArgument,
              "draft_weights: int8 or int4, not int3");
  options_.weights = "int8";
  options_.draft_weights = "int8";
  ExpectError(absl::StatusCode::kInvalidArgument,
              "draft_weights: int8 takes ");
  options_.backend = "cuda";
  ExpectError(absl::StatusCode::kUnimplemented,
              "draft_weights: the cuda backend");
  options_ = good;
  options_.kv_dtype = "int4";
  ExpectError(absl::StatusCode::kInvalidArgument,
              "kv_dtype: \"int4\" is not bf16, int8 or fp8");
  // Before anything is loaded.
  options_.kv_dtype = "fp8";
  options_.model_dir = "/nowhere";
  ExpectError(absl::StatusCode::kUnimplemented,
              "kv_dtype: the cpu backend holds bf16 or int8, not fp8");
  options_ = good;
  options_.model_dir = "";
  ExpectError(absl::StatusCode::kInvalidArgument, "model_dir");
}

// With a GPU it is an engine; without one, or without CUDA in the build, it
// says which of the two is missing.
TEST_F(EngineFactoryTest, CudaWorksOrSaysWhatIsMissing) {
  options_.backend = "cuda";
  const auto engine = CreateEngine(options_);
  if (engine.ok()) {
    EXPECT_THAT((*engine)->backend_name(), testing::StartsWith("cuda-sm"));
    return;
  }
  if (engine.status().code() == absl::StatusCode::kUnimplemented) {
    EXPECT_THAT(engine.status().message(),
                HasSubstr("backend: \"cuda\" is not in this build"));
    return;
  }
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(engine.status().message(), HasSubstr("CUDA device 0"));
}

TEST_F(EngineFactoryTest, KvMemoryMayBeTooSmallOrTooLarge) {
  options_.kv_memory_bytes = 2 * 2 * 2 * 16 * 16 * 2 - 1;
  ExpectError(absl::StatusCode::kResourceExhausted, "too small");
  options_.kv_memory_bytes = int64_t{1} << 58;
  options_.block_size = 128;
  ExpectError(absl::StatusCode::kResourceExhausted, "kv_memory_bytes");
}

TEST_F(EngineFactoryTest, KvMemoryMayBeAShareOfWhatIsFree) {
  options_.kv_memory_share = 1e-4;
  const auto engine = CreateEngine(options_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const int64_t free = process::ReadMemory().Free();
  const int64_t bytes = (*engine)->kv_layout().total_bytes();
  // What is free changes while we look.
  EXPECT_GT(bytes, free / 40000);
  EXPECT_LT(bytes, free / 2500);
  options_.kv_memory_share = 1e-12;
  ExpectError(absl::StatusCode::kResourceExhausted, "kv_memory_share");
  options_.kv_memory_share = 1.5;
  ExpectError(absl::StatusCode::kInvalidArgument, "kv_memory_share: 1.5");
  options_.kv_memory_share = -0.5;
  ExpectError(absl::StatusCode::kInvalidArgument, "kv_memory_share: -0.5");
}

TEST_F(EngineFactoryTest, MissingModel) {
  options_.model_dir += "/nowhere";
  ExpectError(absl::StatusCode::kNotFound, "nowhere");
}

}  // namespace
}  // namespace baton::engine
