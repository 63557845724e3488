// The shapes that engine_cuda_gpu_kernel_times takes its kernels' times at.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model_config.h"
#include "tests/engine/cuda/random_model.h"

namespace baton::engine::cuda {

struct KernelSizes {
  ModelConfig model = Llama8b(32);
  std::vector<int32_t> few_rows = {1, 8, 16, 17, 32, 64};
  std::vector<int32_t> many_rows = {128, 2048, 4096};
  std::vector<int32_t> contexts = {1024, 8192};
  int32_t kv_layers = 4;  // that attention has in turns
  int repeats = 5;
  int64_t copy_bytes = int64_t{2} << 30;
  int64_t product_size = 8192;
  bool once = false;
};

// Small ones, to see that the program runs.
inline KernelSizes TinyKernelSizes() {
  KernelSizes sizes;
  sizes.model.num_layers = 2;
  sizes.model.hidden_size = 128;
  sizes.model.num_heads = 4;
  sizes.model.num_kv_heads = 2;
  sizes.model.head_dim = 64;
  sizes.model.intermediate_size = 192;
  sizes.model.vocab_size = 300;
  sizes.few_rows = {1, 17};
  sizes.many_rows = {70};
  sizes.contexts = {300};
  sizes.kv_layers = 2;
  sizes.repeats = 1;
  sizes.copy_bytes = 1 << 20;
  sizes.product_size = 64;
  return sizes;
}

// Enough for one look of a profiler at each kernel.
inline KernelSizes OnceKernelSizes() {
  KernelSizes sizes;
  sizes.model.num_layers = 2;
  sizes.few_rows = {1, 8, 64};
  sizes.many_rows = {2048};
  sizes.kv_layers = 2;
  sizes.once = true;
  return sizes;
}

}  // namespace baton::engine::cuda
