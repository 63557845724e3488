// Launches the kernels of attention_group.cuh.
#include "engine/cuda/attention_group.h"

#include "device_target.h"
#include "engine/cuda/attention_group.cuh"

namespace baton::engine::cuda {
namespace {

template <int kHeadDim>
void RunFor(const AttentionArgs& args, StreamHandle* stream) {
  const auto run = [&](auto kernel) {
    Launch(kernel, "attention (groups of warps)", AttentionShape(args), stream,
           args);
  };
  switch (args.kv_dtype) {
    case KvDtype::kBf16:
      return run(GroupAttention<kHeadDim, KvDtype::kBf16>);
    case KvDtype::kInt8:
      return run(GroupAttention<kHeadDim, KvDtype::kInt8>);
    case KvDtype::kFp8:
      return run(GroupAttention<kHeadDim, KvDtype::kFp8>);
  }
}

}  // namespace

void RunGroupAttention(const AttentionArgs& args, StreamHandle* stream) {
  switch (args.stored_head_dim) {
    case 64:
      return RunFor<64>(args, stream);
    case 128:
      return RunFor<128>(args, stream);
  }
}

}  // namespace baton::engine::cuda
