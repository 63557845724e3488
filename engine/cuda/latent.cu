// The kernels of latent.h.
#include "engine/cuda/latent.h"

#include "common/log.h"
#include "device_target.h"
#include "engine/cuda/heads.cuh"
#include "engine/cuda/rounding.cuh"

namespace baton::engine::cuda {
namespace {

constexpr int32_t kKeyThreads = kLatentKeyThreads;
constexpr int32_t kKeyWarps = kKeyThreads / 32;
constexpr uint32_t kQueryThreads = 128;  // a head per warp
constexpr uint32_t kPlaceThreads = 256;
constexpr uint32_t kRoundThreads = 128;

// A pair of elements, turned.
struct Turned {
  float first;
  float second;
};
BATON_DEVICE Turned Turn(float a, float b, const float* cosines, int32_t half,
                         int32_t pair) {
  const float cosine = cosines[pair];
  const float sine = cosines[half + pair];
  return {SubRn(MulRn(a, cosine), MulRn(b, sine)),
          AddRn(MulRn(b, cosine), MulRn(a, sine))};
}

// Has room for one float of each warp, twice.
BATON_DEVICE void NormQueries(const LatentKeysArgs& args, const float* x,
                              float* warp_floats) {
  float sum = 0.0f;
  for (int32_t i = Thread(); i < args.query_rank; i += kKeyThreads) {
    sum = AddRn(sum, MulRn(x[i], x[i]));
  }
  const float inverse = InverseRms(SumOfBlock<kKeyThreads>(sum, warp_floats),
                                   args.query_rank, args.eps);
  for (int32_t i = Thread(); i < args.query_rank; i += kKeyThreads) {
    args.queries[PlaceOfInput(args.query_order, BlockX(), i,
                              args.query_stride)] =
        ToBf16(MulRn(MulRn(x[i], inverse), args.query_norm[i]));
  }
}

// The block's greatest number and the sum of its probes: what RoundingOf takes.
struct Extent {
  float largest;
  float probe;
};
BATON_DEVICE Extent ExtentOfBlock(Extent own, float* warp_floats) {
  for (int mask = 16; mask > 0; mask /= 2) {
    own.largest = GreaterOf(own.largest, ShuffleXor(own.largest, mask));
  }
  own.probe = SumOfWarp(own.probe);
  if (Thread() % 32 == 0) {
    warp_floats[Thread() / 32] = own.largest;
    warp_floats[kKeyWarps + Thread() / 32] = own.probe;
  }
  SyncBlock();
  Extent all = {0.0f, 0.0f};
  for (int32_t warp = 0; warp < kKeyWarps; ++warp) {
    all.largest = GreaterOf(all.largest, warp_floats[warp]);
    all.probe = AddRn(all.probe, warp_floats[kKeyWarps + warp]);
  }
  return all;
}

template <KvDtype kDtype>
BATON_DEVICE void WriteKey(const LatentKeysArgs& args, const RowPlace& place,
                           const float* x, float* warp_floats) {
  // The thread's: so many of what is normalized, and a pair that turns.
  float own[kLatentKeyElements];
  float weights[kLatentKeyElements];
  float sum = 0.0f;
  BATON_UNROLL
  for (int k = 0; k < kLatentKeyElements; ++k) {
    const int32_t i = Thread() + k * kKeyThreads;
    own[k] = i < args.rank ? x[i] : 0.0f;
    weights[k] = i < args.rank ? args.norm[i] : 0.0f;
    sum = AddRn(sum, MulRn(own[k], own[k]));
  }
  const int32_t half = args.rope_dim / 2;
  const bool turns = Thread() < half;
  Turned turned = {0.0f, 0.0f};
  if (turns) {
    turned = Turn(x[args.rank + Thread()], x[args.rank + half + Thread()],
                  args.rope + int64_t{place.position} * args.rope_stride,
                  args.rope_stride / 2, Thread());
  }
  const float inverse = InverseRms(SumOfBlock<kKeyThreads>(sum, warp_floats),
                                   args.rank, args.eps);
  BATON_UNROLL
  for (int k = 0; k < kLatentKeyElements; ++k) {
    own[k] = MulRn(MulRn(own[k], inverse), weights[k]);
  }

  std::byte* const part =
      args.pages +
      args.block_tables[place.block_table + place.position / args.block_size] *
          args.page_bytes;
  const int32_t slot = place.position % args.block_size;
  HeadRounding rounding = {};
  if (kDtype != KvDtype::kBf16) {
    Extent extent = {0.0f, 0.0f};
    const auto meet = [&](float value) {
      extent.largest = GreaterOf(extent.largest, MagnitudeOf(value));
      extent.probe = AddRn(extent.probe, MulRn(value, 0.0f));
    };
    BATON_UNROLL
    for (int k = 0; k < kLatentKeyElements; ++k) meet(own[k]);
    meet(turned.first);
    meet(turned.second);
    extent = ExtentOfBlock(extent, warp_floats + kKeyWarps);
    rounding = RoundingOf(extent.largest, kByteMax<kDtype>, extent.probe);
    if (Thread() == 0) {
      reinterpret_cast<float*>(part + args.scales_offset)[slot] =
          rounding.scale;
    }
  }
  const auto put = [&](int32_t i, float value) {
    PutElement<kDtype>(part, KeyPlace(slot, i, args.stored_head_dim), value,
                       rounding.factor);
  };
  BATON_UNROLL
  for (int k = 0; k < kLatentKeyElements; ++k) {
    const int32_t i = Thread() + k * kKeyThreads;
    if (i < args.rank) put(i, own[k]);
  }
  if (turns) {
    put(args.rank + Thread(), turned.first);
    put(args.rank + half + Thread(), turned.second);
  }
  for (int32_t i = args.rank + args.rope_dim + Thread();
       i < args.stored_head_dim; i += kKeyThreads) {
    put(i, 0.0f);
  }
}

// A row's key by one block, and by another, where there is one, what its
// queries are made of.
template <KvDtype kDtype>
BATON_KERNEL(kKeyThreads)
LatentKeys(LatentKeysArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const RowPlace place = args.places[BlockX()];
  if (place.position < 0) return;
  auto* const warp_floats = reinterpret_cast<float*>(SharedMemory());
  const float* const x =
      args.from +
      int64_t{BlockX()} * (args.query_rank + args.rank + args.rope_dim);
  if (BlockY() == 1) {
    NormQueries(args, x, warp_floats);
  } else {
    WriteKey<kDtype>(args, place, x + args.query_rank, warp_floats);
  }
}

BATON_KERNEL(kQueryThreads)
LatentQueries(LatentQueriesArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const int32_t head = BlockY() * (kQueryThreads / 32) + Thread() / 32;
  const int32_t position = args.places[BlockX()].position;
  if (head >= args.heads || position < 0) return;
  const int32_t lane = Thread() % 32;
  const int64_t at = int64_t{BlockX()} * args.heads + head;
  const float* const x = args.from + at * (args.nope_dim + args.rope_dim);
  uint16_t* const nope = args.nope + at * args.nope_stride;
  for (int32_t i = lane; i < args.nope_dim; i += 32) nope[i] = ToBf16(x[i]);
  const float* const turning = x + args.nope_dim;
  uint16_t* const query = args.queries + at * args.stored_head_dim + args.rank;
  const int32_t half = args.rope_dim / 2;
  for (int32_t i = lane; i < half; i += 32) {
    const Turned turned = Turn(turning[i], turning[half + i],
                               args.rope + int64_t{position} * args.rope_stride,
                               args.rope_stride / 2, i);
    query[i] = ToBf16(turned.first);
    query[half + i] = ToBf16(turned.second);
  }
  for (int32_t i = args.rope_dim + lane; i < args.stored_head_dim - args.rank;
       i += 32) {
    query[i] = 0;
  }
}

BATON_KERNEL(kPlaceThreads)
HeadTiles(HeadTilesArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const int32_t place = BlockX() * kPlaceThreads + Thread();
  if (place >= args.rows * args.heads) return;
  const int32_t head = place / args.rows;
  const int32_t row = place % args.rows;
  args.x_rows[place] = row * args.heads + head;
  const int32_t tile_rows = args.tiling.tile_rows;
  if (row % tile_rows != 0) return;
  const int32_t of_head = (args.rows + tile_rows - 1) / tile_rows;
  const int32_t left = args.rows - row;
  args.tiles[head * of_head + row / tile_rows] = {
      head, place, left < tile_rows ? left : tile_rows};
}

BATON_KERNEL(kRoundThreads)
RoundHeads(RoundHeadsArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const int32_t row = BlockX();
  const int32_t head = BlockY();
  const float* const from =
      args.from + (int64_t{head} * args.rows + row) * args.size;
  for (int32_t i = Thread(); i < args.size; i += kRoundThreads) {
    args.to[PlaceOfInput(args.order, args.first_row + row,
                         head * args.head_step + i, args.row_stride)] =
        ToBf16(from[i]);
  }
}

}  // namespace

void RunLatentKeys(const LatentKeysArgs& args, StreamHandle* stream) {
  CHECK_GT(args.rows, 0);
  CHECK_LE(args.rank, kMostLatentRank);
  CHECK_LE(args.rope_dim, 2 * kLatentKeyThreads);
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.rows);
  shape.y = args.query_rank > 0 ? 2 : 1;
  shape.threads = kKeyThreads;
  shape.shared_bytes = 3 * kKeyWarps * int64_t{sizeof(float)};
  switch (args.kv_dtype) {
    case KvDtype::kBf16:
      return Launch(LatentKeys<KvDtype::kBf16>, "latent keys", shape, stream,
                    args);
    case KvDtype::kInt8:
      return Launch(LatentKeys<KvDtype::kInt8>, "latent keys (int8)", shape,
                    stream, args);
    case KvDtype::kFp8:
      return Launch(LatentKeys<KvDtype::kFp8>, "latent keys (fp8)", shape,
                    stream, args);
  }
}

void RunLatentQueries(const LatentQueriesArgs& args, StreamHandle* stream) {
  CHECK_GT(args.rows, 0);
  constexpr int32_t kWarps = kQueryThreads / 32;
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.rows);
  shape.y = static_cast<uint32_t>((args.heads + kWarps - 1) / kWarps);
  shape.threads = kQueryThreads;
  Launch(LatentQueries, "latent queries", shape, stream, args);
}

ExpertTiling HeadTilingOf(int32_t rows, int32_t heads, WeightFormat format) {
  ExpertTiling tiling = TilingOf(rows * heads, heads, format, /*group=*/false);
  tiling.num_tiles = heads * ((rows + tiling.tile_rows - 1) / tiling.tile_rows);
  return tiling;
}

void RunHeadTiles(const HeadTilesArgs& args, StreamHandle* stream) {
  constexpr int32_t kThreads = kPlaceThreads;
  LaunchShape shape;
  shape.x =
      static_cast<uint32_t>((args.rows * args.heads + kThreads - 1) / kThreads);
  shape.threads = kPlaceThreads;
  Launch(HeadTiles, "tiles of heads", shape, stream, args);
}

void RunRoundHeads(const RoundHeadsArgs& args, StreamHandle* stream) {
  CHECK_GT(args.rows, 0);
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.rows);
  shape.y = static_cast<uint32_t>(args.heads);
  shape.threads = kRoundThreads;
  Launch(RoundHeads, "round heads", shape, stream, args);
}

}  // namespace baton::engine::cuda
