// The kernels of latent_attention.h.
#include "engine/cuda/latent_attention.h"

#include "device_target.h"
#include "engine/cuda/attention_merge.cuh"
#include "engine/cuda/attention_softmax.cuh"
#include "engine/cuda/attention_stage.cuh"
#include "engine/cuda/matmul_output.cuh"

namespace baton::engine::cuda {

// What there is to know of a kernel's sizes. Keys are as KV memory has them:
// for every 16 slots rows of 16 words, two neighbouring elements each.
template <int kKeyDim, int kValueDim, KvDtype kDtype>
struct LatentSizes {
  static constexpr bool kHasScales = HasScales(kDtype);
  static constexpr int32_t kRowBytes = kDtype == KvDtype::kBf16 ? 64 : 32;
  static constexpr int32_t kRows = kKeyDim / 2;  // of 16 slots
  static constexpr int32_t kScales = kTilePositions / 16 * kRows * kRowBytes;
  static constexpr int32_t kQueryWords = LatentQueryBytes(kKeyDim) / 4;
  // Rows eight at a time are 16 elements of values: of all, and of a part.
  static constexpr int kPieces = kValueDim / 16;
  static constexpr int kPartPieces =
      (kPieces + kLatentParts - 1) / kLatentParts;
  static_assert(kValueDim % 16 == 0 && kKeyDim % 16 == 0);
};

namespace {

constexpr int kParts = kLatentParts;
constexpr int kGroupThreads = 32 * kParts;  // of 16 queries

// The sums of a span, or of several: of rows g and g + 8 and each 16 elements
// of the part, elements 4c to 4c + 3.
template <int kPieces>
struct LatentSums {
  // Of even elements and of odd ones, as Mma has them.
  float values[kPieces][2][4];

  BATON_DEVICE float& At(int piece, int half, int i) {
    return values[piece][i % 2][2 * half + i / 2];
  }
  BATON_DEVICE void Clear() {
    BATON_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      BATON_UNROLL
      for (int i = 0; i < 8; ++i) values[p][i / 4][i % 4] = 0.0f;
    }
  }
};

// Starts the copies of positions [first, first + 64), of which those before
// `end` exist; 16 slots none of which exist become zeros. Two warps have 16
// slots.
template <int kKeyDim, KvDtype kDtype>
BATON_DEVICE void FetchKeys(const AttentionArgs& args, const BlockId* blocks,
                            int32_t first, int32_t end, unsigned char* stage) {
  using Sizes = LatentSizes<kKeyDim, 16, kDtype>;
  constexpr int32_t kRowBytes = Sizes::kRowBytes;
  constexpr int32_t kRowPieces = kRowBytes / 16;
  constexpr int32_t kPieces = Sizes::kRows * kRowPieces;
  static_assert(kLatentThreads / 32 == 2 * (kTilePositions / 16));
  const int32_t group = Thread() / 64;
  const int32_t position = first + 16 * group;
  const bool there = position < end;
  const int32_t block = position / args.block_size;
  const int32_t slot = position - block * args.block_size;
  const std::byte* const head =
      args.pages + (there ? blocks[block] * args.page_bytes : 0);
  const std::byte* const from = head + slot / 16 * Sizes::kRows * kRowBytes;
  unsigned char* const to = stage + group * Sizes::kRows * kRowBytes;
  BATON_UNROLL
  for (int i = 0; i < (kPieces + 63) / 64; ++i) {
    const int32_t piece = Thread() % 64 + i * 64;
    if (kPieces % 64 != 0 && piece >= kPieces) continue;
    CopyAsync16(to + PairPlace<kDtype>(piece / kRowPieces,
                                       piece % kRowPieces * (16 / kRowPieces)),
                from + piece * 16, there);
  }
  if constexpr (Sizes::kHasScales) {
    const int32_t lane = Thread() % 64;
    if (lane < 4) {
      CopyAsync16(stage + Sizes::kScales + group * 64 + lane * 16,
                  head + args.scales_offset + slot * 4 + lane * 16, there);
    }
  }
}

// The words of two neighbouring elements' product with weights, of slots 2c and
// 2c + 1, from where these lie in a row.
struct SlotWords {
  uint32_t even;
  uint32_t odd;
};
template <KvDtype kDtype>
BATON_DEVICE SlotWords SlotsIn(const unsigned char* at) {
  if constexpr (kDtype == KvDtype::kBf16) {
    const Word2 slots = Load8(at);
    return {(slots.x[0] & 0xffffu) | slots.x[1] << 16,
            slots.x[0] >> 16 | (slots.x[1] & 0xffff0000u)};
  } else {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(at);
    if constexpr (kDtype == KvDtype::kInt8) {
      return {Int8Pair(word), Int8Pair(word >> 8)};
    } else {
      return {Fp8Pair(word << 8), Fp8Pair(word)};
    }
  }
}

// A warp's 16 queries, which lie in the block's memory.
struct HeldQueries : QueryRows {
  const uint32_t* words;  // from the lane's first one on: row g, elements 2c
  bool any;               // the warp has some
};

// The products of the warp's queries with the part's 16 keys of a tile.
template <int kKeyDim, KvDtype kDtype>
BATON_DEVICE void MultiplyKeys(const HeldQueries& queries,
                               const unsigned char* stage,
                               float (&scores)[2][4]) {
  using Sizes = LatentSizes<kKeyDim, 16, kDtype>;
  const int32_t part = Thread() % kGroupThreads / 32;
  const unsigned char* const keys =
      stage + part * Sizes::kRows * Sizes::kRowBytes;
  const unsigned char* const lanes[2] = {keys + LanePlace<kDtype>(0),
                                         keys + LanePlace<kDtype>(1)};
  BATON_UNROLL
  for (int s = 0; s < kKeyDim / 16; ++s) {
    const uint32_t* const at = queries.words + 8 * s;
    const uint32_t a[4] = {at[0], at[8 * Sizes::kQueryWords], at[4],
                           at[8 * Sizes::kQueryWords + 4]};
    BATON_UNROLL
    for (int u = 0; u < 2; ++u) {
      Mma(scores[u], a, PairIn<kDtype>(lanes[u], 8 * s),
          PairIn<kDtype>(lanes[u], 8 * s + 4));
    }
  }
}

// Adds the part's elements of a tile's 64 positions times their weights.
template <int kKeyDim, int kValueDim, KvDtype kDtype>
BATON_DEVICE void MultiplyValues(
    const TileScores& weights, int32_t first, int32_t end,
    const unsigned char* stage,
    LatentSums<LatentSizes<kKeyDim, kValueDim, kDtype>::kPartPieces>& sums) {
  using Sizes = LatentSizes<kKeyDim, kValueDim, kDtype>;
  const int32_t first_piece =
      Thread() % kGroupThreads / 32 * Sizes::kPartPieces;
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;
  const unsigned char* const rows = stage + first_piece * 8 * Sizes::kRowBytes;
  const unsigned char* const lanes[2] = {
      rows + PairPlace<kDtype>(g, 2 * c),
      rows + PairPlace<kDtype>(g, 2 * c + 8)};
  // Behind the end are other sequences' keys, and zero times these is not
  // always zero; but not where bytes are numbers, as all are.
  const bool cut = kDtype == KvDtype::kBf16 && first + kTilePositions > end;
  BATON_UNROLL
  for (int s = 0; s < kTilePositions / 16; ++s) {
    uint32_t a[4];
    PackWeights(weights, s, a);
    uint32_t keep[2] = {0xffffffffu, 0xffffffffu};
    if (cut) {
      BATON_UNROLL
      for (int i = 0; i < 2; ++i) {
        keep[i] = KeptHalves(first + 16 * s + 8 * i + 2 * c, end);
      }
    }
    BATON_UNROLL
    for (int p = 0; p < Sizes::kPartPieces; ++p) {
      if (Sizes::kPieces % kParts != 0 && first_piece + p >= Sizes::kPieces) {
        continue;
      }
      const int32_t row = (s * Sizes::kRows + 8 * p) * Sizes::kRowBytes;
      const SlotWords low = SlotsIn<kDtype>(lanes[0] + row);
      const SlotWords high = SlotsIn<kDtype>(lanes[1] + row);
      Mma(sums.values[p][0], a, low.even & keep[0], high.even & keep[1]);
      Mma(sums.values[p][1], a, low.odd & keep[0], high.odd & keep[1]);
    }
  }
}

// Runs positions [0 or a span's first, end) for the block's queries, two stages
// deep, and calls finish(sums, state) at the end of each span: warps that have
// no queries do nothing but copy. The block's queries are those from
// `first_query` on of the tile.
template <int kKeyDim, int kValueDim, KvDtype kDtype, typename Finish>
BATON_DEVICE void RunKeys(const AttentionArgs& args, const QueryTile& tile,
                          int32_t first_query, int32_t first, int32_t end,
                          const Finish& finish) {
  using Sizes = LatentSizes<kKeyDim, kValueDim, kDtype>;
  constexpr int32_t kStageBytes = LatentStageBytes(kDtype, kKeyDim);
  unsigned char* const stages = SharedMemory();
  unsigned char* const query_rows = stages + 2 * kStageBytes;
  const int32_t warp_query = Thread() / kGroupThreads * 16;
  unsigned char* const exchange = query_rows +
                                  kLatentQueries * LatentQueryBytes(kKeyDim) +
                                  Thread() / kGroupThreads * kSpanExchangeBytes;
  const BlockId* const blocks = args.block_tables + tile.block_table;

  // The tile's queries follow each other.
  const int32_t there = tile.rows * args.num_heads - first_query;
  const auto* const from = reinterpret_cast<const unsigned char*>(
      args.queries +
      (int64_t{tile.first_row} * args.num_heads + first_query) * kKeyDim);
  constexpr int32_t kQueryPieces = kKeyDim / 8;
  for (int32_t i = Thread(); i < kLatentQueries * kQueryPieces;
       i += kLatentThreads) {
    const int32_t query = i / kQueryPieces;
    const bool wanted = query < there;
    CopyAsync16(
        query_rows + query * LatentQueryBytes(kKeyDim) + i % kQueryPieces * 16,
        wanted ? from + int64_t{i} * 16 : from, wanted);
  }
  FetchKeys<kKeyDim, kDtype>(args, blocks, first, end, stages);
  CommitCopies();

  HeldQueries queries;
  queries.any = warp_query < there;
  const int32_t g = Thread() % 32 / 4;
  queries.words = reinterpret_cast<const uint32_t*>(query_rows) +
                  (warp_query + g) * Sizes::kQueryWords + Thread() % 4;
  BATON_UNROLL
  for (int half = 0; half < 2; ++half) {
    queries.Set(args, tile, first_query + warp_query + g + 8 * half, half);
  }

  LatentSums<Sizes::kPartPieces> sums;
  SoftmaxState state[2];
  sums.Clear();
  int32_t stage = 0;
  for (int32_t at = first; at < end;) {
    const int32_t next = at + kTilePositions;
    if (next < end) {
      FetchKeys<kKeyDim, kDtype>(args, blocks, next, end,
                                 stages + (1 - stage) * kStageBytes);
    }
    CommitCopies();
    AwaitCopies<1>();
    SyncBlock();  // the tile is there for all
    unsigned char* const keys = stages + stage * kStageBytes;
    if (queries.any) {
      float mine[2][4] = {};
      MultiplyKeys<kKeyDim, kDtype>(queries, keys, mine);
      BATON_UNROLL
      for (int u = 0; u < 2; ++u) {
        const int32_t t = Thread() % kGroupThreads / 32 * 2 + u;
        StoreSums(exchange + (t * 32 + Thread() % 32) * 16, mine[u]);
      }
    }
    SyncBlock();  // and so are all parts' scores
    if (queries.any) {
      TileScores scores;
      BATON_UNROLL
      for (int t = 0; t < kTilePositions / 8; ++t) {
        LoadSums(exchange + (t * 32 + Thread() % 32) * 16, scores + 4 * t);
      }
      const auto* const scales =
          reinterpret_cast<const float*>(keys + Sizes::kScales);
      float rescale[2];
      ToWeights<Sizes::kHasScales, 2>(args, queries, at, scales, scores, state,
                                      rescale);
      BATON_UNROLL
      for (int p = 0; p < Sizes::kPartPieces; ++p) {
        BATON_UNROLL
        for (int i = 0; i < 8; ++i) {
          float& value = sums.values[p][i / 4][i % 4];
          value = MulRn(value, rescale[i % 4 / 2]);
        }
      }
      if constexpr (Sizes::kHasScales) ScaleWeights<2>(scales, scores);
      MultiplyValues<kKeyDim, kValueDim, kDtype>(scores, at, end, keys, sums);
    }
    SyncBlock();  // all are done with it: the next copies may go there
    stage = 1 - stage;
    at = next;
    if (at < end && at % kSpanPositions != 0) continue;
    if (queries.any) {
      BATON_UNROLL
      for (int half = 0; half < 2; ++half) {
        JoinWeights(state[half]);
      }
      finish(sums, state);
    }
    sums.Clear();
    state[0] = SoftmaxState();
    state[1] = SoftmaxState();
  }
  AwaitCopies<0>();  // an empty group
}

// The lane's elements of a piece of the warp's part begin here.
template <int kPartPieces>
BATON_DEVICE int32_t FirstElement(int piece) {
  return (Thread() % kGroupThreads / 32 * kPartPieces + piece) * 16 +
         Thread() % 4 * 4;
}

// One span of one token: as SpanAttention (attention.cuh), the last block to be
// merges all of them.
template <int kKeyDim, int kValueDim, KvDtype kDtype>
BATON_KERNEL(kLatentThreads)
LatentSpan(AttentionArgs args) {
  using Sizes = LatentSizes<kKeyDim, kValueDim, kDtype>;
  // Which positions these are comes from the host, before a step's kernels.
  const QueryTile tile = args.tiles[BlockZ()];
  const int32_t spans = tile.rows == 0 ? 0 : SpansOf(tile.first_position, 0);
  const int32_t first_query = BlockY() * kLatentQueries;
  const int32_t first = BlockX() * kSpanPositions;
  const int32_t end = first + kSpanPositions < tile.first_position + 1
                          ? first + kSpanPositions
                          : tile.first_position + 1;
  LetNextKernelBegin();
  AwaitEarlierKernels();
  if (BlockX() >= spans) return;
  const auto store = [&](LatentSums<Sizes::kPartPieces>& sums,
                         const SoftmaxState(&state)[2]) {
    BATON_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t query = first_query + Thread() / kGroupThreads * 16 +
                            Thread() % 32 / 4 + 8 * half;
      if (query >= args.num_heads) continue;
      const int64_t place =
          (int64_t{BlockZ()} * args.num_heads + query) * args.max_spans +
          BlockX();
      BATON_UNROLL
      for (int p = 0; p < Sizes::kPartPieces; ++p) {
        const int32_t element = FirstElement<Sizes::kPartPieces>(p);
        if (element >= kValueDim) continue;
        Word4 words;
        BATON_UNROLL
        for (int i = 0; i < 4; ++i) words.x[i] = FloatBits(sums.At(p, half, i));
        Store16(args.span_sums + place * kValueDim + element, words);
      }
      if (Thread() % kGroupThreads < 32 && Thread() % 4 == 0) {
        args.span_states[2 * place] = state[half].max;
        args.span_states[2 * place + 1] = state[half].sum;
      }
    }
  };
  // One span: stores once.
  RunKeys<kKeyDim, kValueDim, kDtype>(args, tile, first_query, first, end,
                                      store);
  const int32_t blocks = LatentBlocks(args.num_heads, 1);
  unsigned char* const shared = SharedMemory();
  if (IsLastOf(args.span_counts + BlockZ() * blocks + BlockY(), spans,
               reinterpret_cast<uint32_t*>(shared))) {
    const int32_t left = args.num_heads - first_query;
    MergeSpans<kValueDim>(args, first_query,
                          left < kLatentQueries ? left : kLatentQueries,
                          kValueDim, args.out_step, spans, shared);
  }
}

// All spans of a tile's queries.
template <int kKeyDim, int kValueDim, KvDtype kDtype>
BATON_KERNEL(kLatentThreads)
LatentTile(AttentionArgs args) {
  using Sizes = LatentSizes<kKeyDim, kValueDim, kDtype>;
  LetNextKernelBegin();
  AwaitEarlierKernels();
  const QueryTile tile = args.tiles[BlockX()];
  const int32_t first_query = BlockY() * kLatentQueries;
  const int32_t last_query = first_query + kLatentQueries - 1;
  if (first_query >= tile.rows * args.num_heads) return;
  // What the last token of these queries sees.
  const int32_t tokens = last_query / args.num_heads + 1;
  const int32_t end =
      tile.first_position + (tokens < tile.rows ? tokens : tile.rows);
  LatentSums<Sizes::kPartPieces> totals;
  SoftmaxState total[2];
  totals.Clear();
  const auto merge = [&](LatentSums<Sizes::kPartPieces>& sums,
                         const SoftmaxState(&state)[2]) {
    const MergeFactors factors[2] = {Merge(total[0], state[0]),
                                     Merge(total[1], state[1])};
    BATON_UNROLL
    for (int p = 0; p < Sizes::kPartPieces; ++p) {
      BATON_UNROLL
      for (int i = 0; i < 8; ++i) {
        float& to = totals.values[p][i / 4][i % 4];
        to = MergeSum(to, sums.values[p][i / 4][i % 4], factors[i % 4 / 2]);
      }
    }
  };
  RunKeys<kKeyDim, kValueDim, kDtype>(args, tile, first_query, /*first=*/0, end,
                                      merge);
  BATON_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int32_t query = first_query + Thread() / kGroupThreads * 16 +
                          Thread() % 32 / 4 + 8 * half;
    if (query >= tile.rows * args.num_heads) continue;
    const int32_t head = query % args.num_heads;
    const float inverse = InverseSum(args, head, total[half]);
    uint16_t* const out =
        args.out +
        (tile.first_output_row + query / args.num_heads) * args.out_stride +
        head * args.out_step;
    BATON_UNROLL
    for (int p = 0; p < Sizes::kPartPieces; ++p) {
      const int32_t element = FirstElement<Sizes::kPartPieces>(p);
      if (element >= kValueDim) continue;
      Store8(
          out + element,
          {{FinishSums(totals.At(p, half, 0), totals.At(p, half, 1), inverse),
            FinishSums(totals.At(p, half, 2), totals.At(p, half, 3),
                       inverse)}});
    }
  }
}

template <int kKeyDim, int kValueDim, KvDtype kDtype>
void RunKernel(const AttentionArgs& args, StreamHandle* stream) {
  if (args.max_spans > 0) {
    Launch(LatentSpan<kKeyDim, kValueDim, kDtype>, "latent attention (spans)",
           LatentAttentionShape(args), stream, args);
  } else {
    Launch(LatentTile<kKeyDim, kValueDim, kDtype>, "latent attention (tiles)",
           LatentAttentionShape(args), stream, args);
  }
}

template <int kKeyDim, int kValueDim>
void RunFor(const AttentionArgs& args, StreamHandle* stream) {
  switch (args.kv_dtype) {
    case KvDtype::kBf16:
      return RunKernel<kKeyDim, kValueDim, KvDtype::kBf16>(args, stream);
    case KvDtype::kInt8:
      return RunKernel<kKeyDim, kValueDim, KvDtype::kInt8>(args, stream);
    case KvDtype::kFp8:
      return RunKernel<kKeyDim, kValueDim, KvDtype::kFp8>(args, stream);
  }
}

}  // namespace

void RunLatentAttention(const AttentionArgs& args, StreamHandle* stream) {
  switch (args.stored_head_dim) {
    case 48:
      return RunFor<48, 32>(args, stream);
    case 64:
      return RunFor<64, 48>(args, stream);
    case 576:
      return RunFor<576, 512>(args, stream);
  }
}

}  // namespace baton::engine::cuda
