// The kernels of row_kernels.h.
#include "engine/cuda/row_kernels.h"

#include "common/log.h"
#include "device_target.h"
#include "engine/cuda/heads.cuh"
#include "engine/cuda/rounding.cuh"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {
namespace {

constexpr uint32_t kRowThreads = 256;
constexpr uint32_t kHeadThreads = 128;  // a head per warp

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
  LetNextKernelBegin();
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
      [&](int32_t i, float value) { to[i] = MulRn(value, args.scale); });
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
template <int kHeld, bool kAddedNorm>
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
  float added_weights[kAddedNorm ? kHeld : 1];
  if constexpr (kAddedNorm) {
    BATON_UNROLL
    for (int k = 0; k < kHeld; ++k) {
      const int32_t i = Thread() + k * kThreads;
      uint32_t bits = 0;
      LoadWeights4(args.added_weight + i, i < args.hidden, bits);
      added_weights[k] = BitsFloat(bits);
    }
  }
  AwaitEarlierKernels();
  LetNextKernelBegin();
  float* const warp_sums = reinterpret_cast<float*>(SharedMemory());
  float* const x = args.residual + int64_t{BlockX()} * args.hidden;
  float held[kHeld];
  BATON_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t i = Thread() + k * kThreads;
    held[k] = i < args.hidden ? x[i] : 0.0f;
  }
  float inverse_added = 1.0f;
  if (args.added != nullptr) {
    float added[kHeld];
    BATON_UNROLL
    for (int k = 0; k < kHeld; ++k) {
      const int32_t i = Thread() + k * kThreads;
      added[k] = i < args.hidden ? AddedTo(args, i) : 0.0f;
    }
    if constexpr (kAddedNorm) {
      float squares = 0.0f;
      BATON_UNROLL
      for (int k = 0; k < kHeld; ++k) {
        squares = AddRn(squares, MulRn(added[k], added[k]));
      }
      for (int32_t i = Thread() + kHeld * kThreads; i < args.hidden;
           i += kThreads) {
        const float value = AddedTo(args, i);
        squares = AddRn(squares, MulRn(value, value));
      }
      inverse_added = InverseRms(SumOfBlock<kThreads>(squares, warp_sums + kThreads / 32),
                                 args.hidden, args.eps);
      BATON_UNROLL
      for (int k = 0; k < kHeld; ++k) {
        added[k] = MulRn(MulRn(added[k], inverse_added), added_weights[k]);
      }
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
      float added = AddedTo(args, i);
      if constexpr (kAddedNorm) {
        added = MulRn(MulRn(added, inverse_added), args.added_weight[i]);
      }
      value = AddRn(value, added);
      x[i] = value;
    }
    sum = AddRn(sum, MulRn(value, value));
  }
  const float inverse =
      InverseRms(SumOfBlock<kThreads>(sum, warp_sums), args.hidden, args.eps);
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

template <KvDtype kDtype, int kElements>
BATON_KERNEL(kHeadThreads)
FinishHeads(FinishHeadsArgs args) {
  PrefetchToL2(args.places + BlockX());
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const int32_t row = BlockX();
  const int32_t heads = args.num_heads + 2 * args.num_kv_heads;
  const int32_t head = BlockY() * (Threads() / 32) + Thread() / 32;
  const RowPlace place = args.places[row];
  if (head >= heads || place.position < 0) return;
  FinishHead<kDtype, kElements>(args, row, place.position,
                     args.block_tables + place.block_table, head,
                     args.queries + (int64_t{row} * args.num_heads + head) *
                                        args.stored_head_dim);
}

BATON_KERNEL(kRowThreads)
Gather(GatherArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
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
  LetNextKernelBegin();
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

// Of heads that are longer than 128, or not.
template <KvDtype kDtype>
auto KernelOf(bool is_long) {
  return is_long ? FinishHeads<kDtype, kLongHeadElements>
                 : FinishHeads<kDtype, kHeadElements>;
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
  shape.shared_bytes = 2 * kRowThreads / 32 * sizeof(float);
  constexpr int kFew = 16;
  constexpr int kMany = 32;
  const bool few = args.hidden <= kFew * static_cast<int32_t>(kRowThreads);
  if (args.added_weight != nullptr) {
    CHECK(args.added != nullptr);
    // Half as many: there are twice as many registers.
    Launch(Norm<kFew, true>, "norm of what is added", shape, stream, args);
  } else if (few) {
    Launch(Norm<kFew, false>, "norm", shape, stream, args);
  } else {
    Launch(Norm<kMany, false>, "norm", shape, stream, args);
  }
}

void RunFinishHeads(const FinishHeadsArgs& args, StreamHandle* stream) {
  const bool is_long = args.head_dim > 32 * kHeadElements;
  CHECK_LE(args.head_dim, 32 * kLongHeadElements);
  const uint32_t heads = args.num_heads + 2 * args.num_kv_heads;
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.rows);
  shape.y = (heads + kHeadThreads / 32 - 1) / (kHeadThreads / 32);
  shape.threads = kHeadThreads;
  switch (args.kv_dtype) {
    case KvDtype::kBf16:
      return Launch(KernelOf<KvDtype::kBf16>(is_long), "finish heads", shape, stream,
                    args);
    case KvDtype::kInt8:
      return Launch(KernelOf<KvDtype::kInt8>(is_long), "finish heads (int8)", shape,
                    stream, args);
    case KvDtype::kFp8:
      return Launch(KernelOf<KvDtype::kFp8>(is_long), "finish heads (fp8)", shape,
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
