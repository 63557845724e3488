// The kernels of row_kernels.h.
//
// Never ran on a GPU: run on the emulated device only (docs/gpu.md).
#include "engine/cuda/row_kernels.h"

#include "common/log.h"
#include "device_target.h"
#include "engine/cuda/rounding.cuh"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {
namespace {

constexpr uint32_t kRowThreads = 256;
constexpr uint32_t kHeadThreads = 128;  // a head per warp
// Of a head, whose elements are 128 at most, that a lane has.
constexpr int kHeadElements = 4;

// The same on all lanes, whatever the lane: each step adds two values that are
// added on the other side, too.
BATON_DEVICE float SumOfWarp(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x = AddRn(x, ShuffleXor(x, mask));
  return x;
}

BATON_DEVICE float InverseRms(float sum_of_squares, int32_t n, float eps) {
  const float mean = DivRn(sum_of_squares, static_cast<float>(n));
  return DivRn(1.0f, SqrtRn(AddRn(mean, eps)));
}

// Calls put(i, get(i)) for a thread's share of `count` elements of a row: so
// many elements are asked for before any is put, as the compiler, which does
// not know that the two do not overlap, would wait for each.
constexpr int kRowAtOnce = 8;
template <typename Get, typename Put>
BATON_DEVICE void ForElements(int32_t count, const Get& get, const Put& put) {
  const int32_t step = Threads();
  for (int32_t first = Thread(); first < count; first += kRowAtOnce * step) {
    decltype(get(0)) values[kRowAtOnce];
    BATON_UNROLL
    for (int k = 0; k < kRowAtOnce; ++k) {
      if (first + k * step < count) values[k] = get(first + k * step);
    }
    BATON_UNROLL
    for (int k = 0; k < kRowAtOnce; ++k) {
      if (first + k * step < count) put(first + k * step, values[k]);
    }
  }
}

BATON_KERNEL(kRowThreads)
Embed(EmbedArgs args) {
  AwaitEarlierKernels();
  const int64_t token = args.tokens[BlockX()];
  const DeviceMatrix& head = args.head;
  float* const to = args.residual + int64_t{BlockX()} * args.hidden;
  ForElements(
      args.hidden,
      [&](int32_t i) {
        return args.table != nullptr
                   ? BitsFloat(uint32_t{args.table[token * args.hidden + i]}
                               << 16)
                   : ReadWeight(head.format, head.tiles, head.scales, token, i,
                                head.padded_inputs);
      },
      [&](int32_t i, float value) { to[i] = value; });
}

// What is added to a row's element before it is normalized.
BATON_DEVICE float AddedTo(const NormArgs& args, int32_t i) {
  const int64_t part = i / args.part_size;
  return args.added[(part * args.rows + BlockX()) * args.part_size +
                    i % args.part_size];
}

BATON_DEVICE uint16_t Normed(float value, float inverse, float weight) {
  return ToBf16(MulRn(MulRn(value, inverse), weight));
}

// A thread has kHeld elements and their weights in registers, all of which it
// asks for at once: with one row, what takes time is the memory's latency. Rows
// that are longer are read again.
template <int kHeld>
BATON_KERNEL(kRowThreads)
Norm(NormArgs args) {
  constexpr int32_t kThreads = kRowThreads;
  // The weights, which no kernel writes, before what the product before gives.
  float weights[kHeld];
  BATON_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = Thread() + k * kThreads;
    uint32_t bits = 0;
    LoadWeights4(args.weight + i, i < args.hidden, bits);
    weights[k] = BitsFloat(bits);
  }
  AwaitEarlierKernels();
  float* const warp_sums = reinterpret_cast<float*>(SharedMemory());
  float* const x = args.residual + int64_t{BlockX()} * args.hidden;
  float held[kHeld];
  BATON_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = Thread() + k * kThreads;
    held[k] = i < args.hidden ? x[i] : 0.0f;
  }
  if (args.added != nullptr) {
    float added[kHeld];
    BATON_UNROLL
    for (int k = 0; k < kHeld; ++k) {
      const int32_t i = Thread() + k * kThreads;
      added[k] = i < args.hidden ? AddedTo(args, i) : 0.0f;
    }
    BATON_UNROLL
    for (int k = 0; k < kHeld; ++k) {
      const int32_t i = Thread() + k * kThreads;
      held[k] = AddRn(held[k], added[k]);
      if (i < args.hidden) x[i] = held[k];
    }
  }
  float sum = 0.0f;
  BATON_UNROLL
  for (int k = 0; k < kHeld; ++k) sum = AddRn(sum, MulRn(held[k], held[k]));
  for (int32_t i = Thread() + kHeld * kThreads; i < args.hidden;
       i += kThreads) {
    float value = x[i];
    if (args.added != nullptr) {
      value = AddRn(value, AddedTo(args, i));
      x[i] = value;
    }
    sum = AddRn(sum, MulRn(value, value));
  }
  sum = SumOfWarp(sum);
  if (Thread() % 32 == 0) warp_sums[Thread() / 32] = sum;
  SyncBlock();
  sum = 0.0f;
  for (int32_t warp = 0; warp < kThreads / 32; ++warp) {
    sum = AddRn(sum, warp_sums[warp]);
  }
  const float inverse = InverseRms(sum, args.hidden, args.eps);
  // Places of elements that are whole slices apart are as far from each other,
  // in either order.
  static_assert(kThreads % kSliceInputs == 0);
  uint16_t* const to = args.out + PlaceOfInput(args.out_order, BlockX(),
                                               Thread(), args.out_stride);
  constexpr int32_t kStagedStep = kThreads * kStagedRows;
  const int32_t step =
      args.out_order == InputOrder::kStaged ? kStagedStep : kThreads;
  BATON_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = Thread() + k * kThreads;
    if (i < args.hidden) {
      to[int64_t{k} * step] = Normed(held[k], inverse, weights[k]);
    }
  }
  for (int32_t i = Thread() + kHeld * kThreads; i < args.hidden;
       i += kThreads) {
    args.out[PlaceOfInput(args.out_order, BlockX(), i, args.out_stride)] =
        Normed(x[i], inverse, args.weight[i]);
  }
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
constexpr float kByteMax = kDtype == KvDtype::kInt8 ? 127.0f : kFp8Max;

template <KvDtype kDtype>
BATON_KERNEL(kHeadThreads)
FinishHeads(FinishHeadsArgs args) {
  PrefetchToL2(args.places + BlockX());
  AwaitEarlierKernels();
  const int32_t row = BlockX();
  const int32_t heads = args.num_heads + 2 * args.num_kv_heads;
  const int32_t head = BlockY() * (Threads() / 32) + Thread() / 32;
  const RowPlace place = args.places[row];
  if (head >= heads || place.position < 0) return;
  const int32_t lane = Thread() % 32;
  const int32_t dim = args.head_dim;
  const int32_t half = dim / 2;
  const bool is_query = head < args.num_heads;
  const bool is_value = head >= args.num_heads + args.num_kv_heads;
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
  uint16_t* query = nullptr;
  std::byte* part = nullptr;  // keys, or values
  int32_t slot = 0;
  if (is_query) {
    query = args.queries +
            (int64_t{row} * args.num_heads + head) * args.stored_head_dim;
  } else {
    const BlockId block =
        args.block_tables[place.block_table + place.position / args.block_size];
    part = args.pages + block * args.page_bytes + kv_head * args.head_bytes +
           (is_value ? args.values_offset : 0);
    slot = place.position % args.block_size;
  }

  // What the lane has of the head, rotated, all asked for at once: elements
  // lane + 32 k of a value; of queries and keys, which rotate in pairs, those
  // of the first half and then of the second.
  float own[kHeadElements];
  const auto element = [&](int k) {
    if (is_value) return lane + 32 * k;
    return lane + 32 * (k % 2) + (k / 2) * half;
  };
  const auto there = [&](int k) {
    return is_value ? lane + 32 * k < dim : lane + 32 * (k % 2) < half;
  };
  BATON_UNROLL
  for (int k = 0; k < kHeadElements; ++k) {
    own[k] = there(k) ? x[element(k)] : 0.0f;
  }
  if (!is_value) {
    const float* const cosines = args.rope + int64_t{place.position} * dim;
    float cosine[2];
    float sine[2];
    float weights[kHeadElements];
    BATON_UNROLL
    for (int k = 0; k < 2; ++k) {
      cosine[k] = there(k) ? cosines[element(k)] : 0.0f;
      sine[k] = there(k) ? cosines[half + element(k)] : 0.0f;
    }
    BATON_UNROLL
    for (int k = 0; k < kHeadElements; ++k) {
      weights[k] = norm != nullptr && there(k) ? norm[element(k)] : 0.0f;
    }
    BATON_UNROLL
    for (int k = 0; k < 2; ++k) {
      float a = own[k];
      float b = own[k + 2];
      if (norm != nullptr) {
        a = MulRn(MulRn(a, inverse), weights[k]);
        b = MulRn(MulRn(b, inverse), weights[k + 2]);
      }
      own[k] = SubRn(MulRn(a, cosine[k]), MulRn(b, sine[k]));
      own[k + 2] = AddRn(MulRn(b, cosine[k]), MulRn(a, sine[k]));
    }
  }

  HeadRounding rounding = {};
  if (kDtype != KvDtype::kBf16 && !is_query) {
    float largest = 0.0f;
    float probe = 0.0f;
    BATON_UNROLL
    for (int k = 0; k < kHeadElements; ++k) {
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
    const int64_t at = is_value ? ValuePlace(slot, i, args.block_size)
                                : KeyPlace(slot, i, args.stored_head_dim);
    if constexpr (kDtype == KvDtype::kBf16) {
      reinterpret_cast<uint16_t*>(part)[at] = ToBf16(value);
    } else if constexpr (kDtype == KvDtype::kInt8) {
      reinterpret_cast<int8_t*>(part)[at] = ToInt8(value, rounding.factor);
    } else {
      reinterpret_cast<uint8_t*>(part)[at] =
          ToE4m3(MulRn(value, rounding.factor));
    }
  };
  BATON_UNROLL
  for (int k = 0; k < kHeadElements; ++k) {
    if (there(k)) put(element(k), own[k]);
  }
  // What fills a head up to whole pieces of a product.
  for (int32_t i = dim + lane; i < args.stored_head_dim; i += 32) put(i, 0.0f);
}

BATON_KERNEL(kRowThreads)
Gather(GatherArgs args) {
  AwaitEarlierKernels();
  const float* const from =
      args.from + int64_t{args.rows[BlockX()]} * args.hidden;
  float* const to = args.to + int64_t{BlockX()} * args.hidden;
  ForElements(
      args.hidden, [&](int32_t i) { return from[i]; },
      [&](int32_t i, float value) { to[i] = value; });
}

template <typename T>
BATON_KERNEL(kRowThreads)
Join(JoinArgs args) {
  AwaitEarlierKernels();
  const T* const from = reinterpret_cast<const T*>(args.from);
  T* const to = reinterpret_cast<T*>(args.to);
  ForElements(
      args.size,
      [&](int32_t i) {
        const int64_t part = i / args.part_size;
        return from[(part * args.rows + BlockX()) * args.part_size +
                    i % args.part_size];
      },
      [&](int32_t i, T value) {
        to[PlaceOfInput(args.to_order, BlockX(), i, args.to_stride)] = value;
      });
}

LaunchShape OnePerRow(int32_t rows) {
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(rows);
  shape.threads = kRowThreads;
  return shape;
}

}  // namespace

void RunEmbed(const EmbedArgs& args, StreamHandle* stream) {
  Launch(Embed, "embed", OnePerRow(args.rows), stream, args);
}

void RunNorm(const NormArgs& args, StreamHandle* stream) {
  LaunchShape shape = OnePerRow(args.rows);
  shape.shared_bytes = kRowThreads / 32 * sizeof(float);
  constexpr int kFew = 16;
  constexpr int kMany = 32;
  if (args.hidden <= kFew * static_cast<int32_t>(kRowThreads)) {
    Launch(Norm<kFew>, "norm", shape, stream, args);
  } else {
    Launch(Norm<kMany>, "norm", shape, stream, args);
  }
}

void RunFinishHeads(const FinishHeadsArgs& args, StreamHandle* stream) {
  CHECK_LE(args.head_dim, 32 * kHeadElements);
  const uint32_t heads = args.num_heads + 2 * args.num_kv_heads;
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.rows);
  shape.y = (heads + kHeadThreads / 32 - 1) / (kHeadThreads / 32);
  shape.threads = kHeadThreads;
  switch (args.kv_dtype) {
    case KvDtype::kBf16:
      return Launch(FinishHeads<KvDtype::kBf16>, "finish heads", shape, stream,
                    args);
    case KvDtype::kInt8:
      return Launch(FinishHeads<KvDtype::kInt8>, "finish heads (int8)", shape,
                    stream, args);
    case KvDtype::kFp8:
      return Launch(FinishHeads<KvDtype::kFp8>, "finish heads (fp8)", shape,
                    stream, args);
  }
}

void RunJoin(const JoinArgs& args, StreamHandle* stream) {
  CHECK(args.element_bytes == 2 || args.element_bytes == 4);
  Launch(args.element_bytes == 2 ? Join<uint16_t> : Join<uint32_t>, "join",
         OnePerRow(args.rows), stream, args);
}

void RunGather(const GatherArgs& args, StreamHandle* stream) {
  Launch(Gather, "gather", OnePerRow(args.count), stream, args);
}

}  // namespace baton::engine::cuda
