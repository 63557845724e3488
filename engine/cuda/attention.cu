// Launches the kernels of attention.h.
#include "engine/cuda/attention.h"

#include "device_target.h"
#include "engine/cuda/attention.cuh"
#include "engine/cuda/attention_group.h"
#include "engine/cuda/latent_attention.h"

namespace baton::engine::cuda {
namespace {

template <int kHeadDim, KvDtype kDtype>
void RunKernels(const AttentionArgs& args, StreamHandle* stream) {
  if (args.max_spans > 0) {
    const bool few = args.num_heads <= 8 * args.num_kv_heads;
    Launch(args.span_rows > 1 ? SpanAttention<kHeadDim, kDtype, 2, true>
           : few              ? SpanAttention<kHeadDim, kDtype, 1, false>
                              : SpanAttention<kHeadDim, kDtype, 2, false>,
           "attention (spans)", AttentionShape(args), stream, args);
  } else {
    Launch(TileAttention<kHeadDim, kDtype>, "attention (tiles)",
           AttentionShape(args), stream, args);
  }
}

template <int kHeadDim>
void RunFor(const AttentionArgs& args, StreamHandle* stream) {
  switch (args.kv_dtype) {
    case KvDtype::kBf16:
      return RunKernels<kHeadDim, KvDtype::kBf16>(args, stream);
    case KvDtype::kInt8:
      return RunKernels<kHeadDim, KvDtype::kInt8>(args, stream);
    case KvDtype::kFp8:
      return RunKernels<kHeadDim, KvDtype::kFp8>(args, stream);
  }
}

}  // namespace

void RunAttention(const AttentionArgs& args, StreamHandle* stream) {
  if (args.value_dim > 0) return RunLatentAttention(args, stream);
  if (args.tile_queries == kGroupTileQueries) {
    return RunGroupAttention(args, stream);
  }
  switch (args.stored_head_dim) {
    case 16:
      return RunFor<16>(args, stream);
    case 32:
      return RunFor<32>(args, stream);
    case 48:
      return RunFor<48>(args, stream);
    case 64:
      return RunFor<64>(args, stream);
    case 80:
      return RunFor<80>(args, stream);
    case 96:
      return RunFor<96>(args, stream);
    case 128:
      return RunFor<128>(args, stream);
    case 256:
      return RunFor<256>(args, stream);
  }
}

}  // namespace baton::engine::cuda
