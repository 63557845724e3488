// What heads.h says, for kernels: a warp makes a head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device_target.h"
#include "engine/cuda/heads.h"
#include "engine/cuda/rounding.cuh"

namespace baton::engine::cuda {

// Of a head that a lane has: of one of at most 128 elements, and of longer ones,
// of at most 256.
inline constexpr int kHeadElements = 4;
inline constexpr int kLongHeadElements = 8;

// The same on all lanes, whatever the lane: each step adds two values that are
// added on the other side, too.
BATON_DEVICE float SumOfWarp(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x = AddRn(x, ShuffleXor(x, mask));
  return x;
}

// The sum of what the kThreads threads of a block have; `sums` has room for one
// of each warp, which no other sum uses.
template <int kThreads>
BATON_DEVICE float SumOfBlock(float sum, float* sums) {
  sum = SumOfWarp(sum);
  if (Thread() % 32 == 0) sums[Thread() / 32] = sum;
  SyncBlock();
  sum = 0.0f;
  for (int32_t warp = 0; warp < kThreads / 32; ++warp) {
    sum = AddRn(sum, sums[warp]);
  }
  return sum;
}

BATON_DEVICE float InverseRms(float sum_of_squares, int32_t n, float eps) {
  const float mean = DivRn(sum_of_squares, static_cast<float>(n));
  return DivRn(1.0f, SqrtRn(AddRn(mean, eps)));
}

// Where element `element` of a key of slot `slot` lies in a head's part, and of
// a value behind the values' offset, in elements (kv_layout.h).
BATON_DEVICE int64_t KeyPlace(int32_t slot, int32_t element, int32_t stored) {
  return int64_t{slot / 16} * 16 * stored + element / 2 * 32 + slot % 16 * 2 +
         element % 2;
}
BATON_DEVICE int64_t ValuePlace(int32_t slot, int32_t element,
                                int32_t block_size) {
  return int64_t{element / 16} * 16 * block_size + slot / 2 * 32 +
         element % 16 * 2 + slot % 2;
}

// How a head becomes bytes with a scale: as engine/cpu/row_kernels.inl makes
// int8, operation for operation.
struct HeadRounding {
  float factor;
  float scale;
};

// Of a head whose greatest magnitude is `largest`, NaN left out, and becomes
// `limit`. `probe` is zero, or NaN when a value is not finite.
BATON_DEVICE HeadRounding RoundingOf(float largest, float limit, float probe) {
  // Below this limit / largest would not be finite.
  constexpr float kTiny = 1e-35f;
  const bool tiny = !(largest > kTiny);
  return {tiny ? 0.0f : DivRn(limit, largest),
          AddRn(tiny ? 0.0f : DivRn(largest, limit), probe)};
}

// The largest magnitude of a byte.
template <KvDtype kDtype>
inline constexpr float kByteMax = kDtype == KvDtype::kInt8 ? 127.0f : kFp8Max;

// Element `at` of a head's keys, or values, as they are stored.
template <KvDtype kDtype>
BATON_DEVICE void PutElement(std::byte* part, int64_t at, float value,
                             float factor) {
  if constexpr (kDtype == KvDtype::kBf16) {
    reinterpret_cast<uint16_t*>(part)[at] = ToBf16(value);
  } else if constexpr (kDtype == KvDtype::kInt8) {
    reinterpret_cast<int8_t*>(part)[at] = ToInt8(value, factor);
  } else {
    reinterpret_cast<uint8_t*>(part)[at] = ToE4m3(MulRn(value, factor));
  }
}

// Head `head` of row `row`, whose token stands at `position` of the sequence
// with these blocks: queries first, then keys, then values. A query goes to
// `query`, of stored_head_dim elements. By all lanes of a warp.
template <KvDtype kDtype, int kElements>
BATON_DEVICE void FinishHead(const FinishHeadsArgs& args, int32_t row,
                             int32_t position, const BlockId* blocks,
                             int32_t head, uint16_t* query) {
  const int32_t lane = Thread() % 32;
  const int32_t dim = args.head_dim;
  const int32_t half = dim / 2;
  const bool is_query = head < args.num_heads;
  const bool is_value = head >= args.num_heads + args.num_kv_heads;
  const int32_t heads = args.num_heads + 2 * args.num_kv_heads;
  const float* const x = args.qkv + (int64_t{row} * heads + head) * dim;

  float inverse = 1.0f;
  const float* const norm = is_value   ? nullptr
                            : is_query ? args.q_norm
                                       : args.k_norm;
  if (norm != nullptr) {
    float sum = 0.0f;
    for (int32_t i = lane; i < dim; i += 32) {
      sum = AddRn(sum, MulRn(x[i], x[i]));
    }
    inverse = InverseRms(SumOfWarp(sum), dim, args.eps);
  }

  const int32_t kv_head =
      (head - args.num_heads) % args.num_kv_heads;  // of keys and values
  std::byte* part = nullptr;                        // keys, or values
  int32_t slot = 0;
  if (!is_query) {
    part = args.pages + blocks[position / args.block_size] * args.page_bytes +
           kv_head * args.head_bytes + (is_value ? args.values_offset : 0);
    slot = position % args.block_size;
  }

  // What the lane has of the head, rotated, all asked for at once: elements
  // lane + 32 k of a value; of queries and keys, which rotate in pairs, the
  // first of each of its pairs and then the second ones. Elements that do not
  // turn make pairs, too.
  constexpr int kPairs = kElements / 2;
  float own[kElements];
  const auto element = [&](int k) {
    if (is_value) return lane + 32 * k;
    const int32_t pair = lane + 32 * (k % kPairs);
    const int32_t turning = args.turning_pairs;
    if (pair < turning) return pair + (k / kPairs) * turning;
    return pair + (k / kPairs == 0 ? turning : half);
  };
  const auto there = [&](int k) {
    return is_value ? lane + 32 * k < dim : lane + 32 * (k % kPairs) < half;
  };
  BATON_UNROLL
  for (int k = 0; k < kElements; ++k) {
    own[k] = there(k) ? x[element(k)] : 0.0f;
  }
  if (!is_value) {
    const float* const cosines = args.rope + int64_t{position} * dim;
    float cosine[kPairs];
    float sine[kPairs];
    float weights[kElements];
    BATON_UNROLL
    for (int k = 0; k < kPairs; ++k) {
      const int32_t pair = lane + 32 * k;
      cosine[k] = there(k) ? cosines[pair] : 0.0f;
      sine[k] = there(k) ? cosines[half + pair] : 0.0f;
    }
    BATON_UNROLL
    for (int k = 0; k < kElements; ++k) {
      weights[k] = norm != nullptr && there(k) ? norm[element(k)] : 0.0f;
    }
    BATON_UNROLL
    for (int k = 0; k < kPairs; ++k) {
      float a = own[k];
      float b = own[k + kPairs];
      if (norm != nullptr) {
        a = MulRn(MulRn(a, inverse), weights[k]);
        b = MulRn(MulRn(b, inverse), weights[k + kPairs]);
      }
      own[k] = SubRn(MulRn(a, cosine[k]), MulRn(b, sine[k]));
      own[k + kPairs] = AddRn(MulRn(b, cosine[k]), MulRn(a, sine[k]));
    }
  }

  HeadRounding rounding = {};
  if (kDtype != KvDtype::kBf16 && !is_query) {
    float largest = 0.0f;
    float probe = 0.0f;
    BATON_UNROLL
    for (int k = 0; k < kElements; ++k) {
      const float magnitude = MagnitudeOf(own[k]);
      largest = magnitude > largest ? magnitude : largest;
      probe = AddRn(probe, MulRn(own[k], 0.0f));
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      const float other = ShuffleXor(largest, mask);
      largest = other > largest ? other : largest;
    }
    rounding = RoundingOf(largest, kByteMax<kDtype>, SumOfWarp(probe));
    if (lane == 0) {
      reinterpret_cast<float*>(part + args.scales_offset)[slot] =
          rounding.scale;
    }
  }

  const auto put = [&](int32_t i, float value) {
    if (is_query) {
      query[i] = ToBf16(value);
      return;
    }
    PutElement<kDtype>(part,
                       is_value ? ValuePlace(slot, i, args.block_size)
                                : KeyPlace(slot, i, args.stored_head_dim),
                       value, rounding.factor);
  };
  BATON_UNROLL
  for (int k = 0; k < kElements; ++k) {
    if (there(k)) put(element(k), own[k]);
  }
  // What fills a head up to whole pieces of a product.
  for (int32_t i = dim + lane; i < args.stored_head_dim; i += 32) put(i, 0.0f);
}

}  // namespace baton::engine::cuda
