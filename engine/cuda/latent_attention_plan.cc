#include <numeric>

#include "common/log.h"
#include "engine/cuda/latent_attention.h"

namespace baton::engine::cuda {

bool IsLatentAttention(int32_t stored_head_dim, int32_t value_dim) {
  return (stored_head_dim == 576 && value_dim == 512) ||
         (stored_head_dim == 64 && value_dim == 48) ||
         (stored_head_dim == 48 && value_dim == 32);
}

int32_t LatentTileRows(int32_t heads) {
  return kLatentQueries / std::gcd(heads, kLatentQueries);
}

LaunchShape LatentAttentionShape(const AttentionArgs& args) {
  CHECK_GT(args.num_tiles, 0);
  CHECK_EQ(args.num_kv_heads, 1);
  CHECK_EQ(args.window, 0);
  CHECK(args.sinks == nullptr);
  CHECK(args.heads.qkv == nullptr);
  CHECK(args.out_step % 4 == 0 && args.out_stride % 4 == 0);
  CHECK(args.out_order == InputOrder::kNatural);
  LaunchShape shape;
  shape.threads = kLatentThreads;
  shape.shared_bytes = LatentSharedBytes(args.kv_dtype, args.stored_head_dim);
  if (args.max_spans > 0) {
    shape.x = static_cast<uint32_t>(args.max_spans);
    shape.y = static_cast<uint32_t>(LatentBlocks(args.num_heads, 1));
    shape.z = static_cast<uint32_t>(args.num_tiles);
  } else {
    shape.x = static_cast<uint32_t>(args.num_tiles);
    shape.y = static_cast<uint32_t>(
        LatentBlocks(args.num_heads, LatentTileRows(args.num_heads)));
  }
  CHECK(shape.y < 65536 && shape.z < 65536) << shape.y << " " << shape.z;
  return shape;
}

}  // namespace baton::engine::cuda
