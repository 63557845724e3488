#include <cmath>

#include "common/log.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/attention_group.h"

namespace baton::engine::cuda {
namespace {

constexpr uint32_t kTileWarps = kTileQueries / 16;

}  // namespace

bool IsAttentionHeadDim(int32_t stored_head_dim) {
  switch (stored_head_dim) {
    case 16:
    case 32:
    case 48:
    case 64:
    case 80:
    case 96:
    case 128:
    case 256:
      return true;
    default:
      return false;
  }
}

bool IsGroupAttentionHeadDim(int32_t stored_head_dim) {
  return stored_head_dim == 64 || stored_head_dim == 128;
}

float ScoreFactor(double scale) { return static_cast<float>(kLog2E * scale); }

// Two stages, and the sums of the spans so far, float32.
int64_t AttentionSharedBytes(KvDtype dtype, int32_t stored_head_dim) {
  return 2 * int64_t{StageBytes(dtype, stored_head_dim)} +
         int64_t{kTileQueries} * 4 * stored_head_dim;
}

LaunchShape AttentionShape(const AttentionArgs& args) {
  CHECK_GT(args.num_tiles, 0);
  const int32_t group = args.num_heads / args.num_kv_heads;
  LaunchShape shape;
  const int64_t stages =
      2 * int64_t{StageBytes(args.kv_dtype, args.stored_head_dim)};
  shape.y = static_cast<uint32_t>(args.num_kv_heads);
  if (args.tile_queries == kGroupTileQueries) {
    CHECK_EQ(args.max_spans, 0);
    CHECK_LE(group, kGroupTileQueries);
    CHECK(IsGroupAttentionHeadDim(args.stored_head_dim));
    shape.x = static_cast<uint32_t>(args.num_kv_heads);
    shape.y = static_cast<uint32_t>(args.num_tiles);
    shape.threads = kGroupAttentionThreads;
    shape.shared_bytes = GroupAttentionSharedBytes(args.stored_head_dim);
  } else if (args.max_spans > 0) {
    CHECK_LE(group, kSpanQueries);
    CHECK_LE(args.span_rows, MaxSpanRows(group));
    CHECK(args.span_rows == 1 || args.heads.qkv == nullptr);
    shape.x = static_cast<uint32_t>(args.max_spans);
    shape.z = static_cast<uint32_t>(args.num_tiles);
    shape.threads = static_cast<uint32_t>(32 * SpanParts(args.stored_head_dim));
    shape.shared_bytes = stages + SpanExchangeBytes(args.stored_head_dim);
  } else {
    CHECK_LE(group, kTileQueries);
    shape.x = static_cast<uint32_t>(args.num_tiles);
    shape.threads = 32 * kTileWarps;
    shape.shared_bytes =
        AttentionSharedBytes(args.kv_dtype, args.stored_head_dim);
  }
  CHECK(shape.y < 65536 && shape.z < 65536) << shape.y << " " << shape.z;
  return shape;
}

}  // namespace baton::engine::cuda
