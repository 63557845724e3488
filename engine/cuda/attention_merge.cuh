// How the spans of one token, which blocks of their own have run, become its
// attention: the last of these blocks to end merges them, so that no kernel
// more has to begin and no other memory is read. See attention.cuh.
#pragma once

#include "device_target.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/attention_softmax.cuh"

namespace baton::engine::cuda {

// Heads and spans whose sums a thread asks for before it uses any: a block is
// by itself then, and what counts is how often it waits.
inline constexpr int kMergeHeads = 4;
inline constexpr int kMergeSpans = 8;
// Spans whose states there is room for in what the warps exchange scores by.
inline constexpr int32_t kMergeStates =
    kSpanExchangeBytes /
    (kMergeHeads * static_cast<int32_t>(sizeof(SoftmaxState)));

// Whether this block is the last of `spans` to come here with this counter. All
// its threads call it; if so, they see what the others wrote before they came.
// The counter is zero before the first and after the last.
BATON_DEVICE bool IsLastOf(uint32_t* counter, int32_t spans, uint32_t* shared) {
  SyncBlock();
  if (Thread() == 0) {
    // Of what the block wrote, as the barrier came before; and of others'.
    FenceDevice();
    const bool last = AtomicNext(counter) + 1 == static_cast<uint32_t>(spans);
    FenceDevice();
    if (last) *counter = 0;
    *shared = last ? 1 : 0;
  }
  SyncBlock();
  return *shared != 0;
}

// The attention of a token, whose results are row `row`, for `heads` heads from
// `first_head` on, from its spans' sums and states, which are the `piece`-th.
// Sums lie kStored elements apart, of which there are `elements`; results lie
// `out_step` apart. `shared`: kSpanExchangeBytes of the block's memory. All
// threads of the block.
template <int kStored>
BATON_DEVICE void MergeSpans(const AttentionArgs& args, int32_t piece,
                             int32_t row, int32_t first_head, int32_t heads,
                             int32_t elements, int32_t out_step, int32_t spans,
                             unsigned char* shared) {
  auto* const states = reinterpret_cast<SoftmaxState*>(shared);
  for (int32_t first_query = 0; first_query < heads;
       first_query += kMergeHeads) {
    const int32_t queries =
        heads - first_query < kMergeHeads ? heads - first_query : kMergeHeads;
    const int32_t head = first_head + first_query;
    const int64_t place =
        (int64_t{piece} * args.num_heads + head) * args.max_spans;
    for (int32_t at = 0; at < elements; at += Threads()) {
      const int32_t element = at + Thread();
      const bool there = element < elements;
      SoftmaxState total[kMergeHeads];
      float sum[kMergeHeads] = {};
      for (int32_t begin = 0; begin < spans; begin += kMergeStates) {
        const int32_t count =
            spans - begin < kMergeStates ? spans - begin : kMergeStates;
        SyncBlock();  // nobody reads those before them
        // A warp for a head. What is not there, up to what is merged together,
        // changes nothing: no branch is among the sums.
        const int32_t padded =
            (count + kMergeSpans - 1) / kMergeSpans * kMergeSpans;
        for (int32_t q = Thread() / 32; q < kMergeHeads; q += Threads() / 32) {
          for (int32_t i = Thread() % 32; i < padded; i += 32) {
            const int64_t from = place + q * args.max_spans + begin + i;
            SoftmaxState state;
            if (q < queries && i < count) {
              state = {LoadFresh(args.span_states + 2 * from),
                       LoadFresh(args.span_states + 2 * from + 1)};
            }
            states[q * kMergeStates + i] = state;
          }
        }
        SyncBlock();
        if (!there) continue;
        for (int32_t first = 0; first < count; first += kMergeSpans) {
          float parts[kMergeSpans][kMergeHeads];
          BATON_UNROLL
          for (int s = 0; s < kMergeSpans; ++s) {
            BATON_UNROLL
            for (int q = 0; q < kMergeHeads; ++q) {
              parts[s][q] = q < queries && first + s < count
                                ? LoadFresh(args.span_sums +
                                            (place + q * args.max_spans +
                                             begin + first + s) *
                                                kStored +
                                            element)
                                : 0.0f;
            }
          }
          BATON_UNROLL
          for (int s = 0; s < kMergeSpans; ++s) {
            BATON_UNROLL
            for (int q = 0; q < kMergeHeads; ++q) {
              const MergeFactors factors =
                  Merge(total[q], states[q * kMergeStates + first + s]);
              sum[q] = MergeSum(sum[q], parts[s][q], factors);
            }
          }
        }
      }
      if (!there) continue;
      BATON_UNROLL
      for (int q = 0; q < kMergeHeads; ++q) {
        if (q == queries) break;
        args.out[PlaceOfInput(args.out_order, row,
                              (head + q) * out_step + element,
                              args.out_stride)] =
            FinishSum(sum[q], InverseSum(args, head + q, total[q]));
      }
    }
  }
}

// The same of the one token of tile BlockZ(), which has the place of its own.
template <int kStored>
BATON_DEVICE void MergeSpans(const AttentionArgs& args, int32_t first_head,
                             int32_t heads, int32_t elements, int32_t out_step,
                             int32_t spans, unsigned char* shared) {
  // Read anew, rather than held in registers all the while.
  const int32_t row = args.tiles[BlockZ()].first_output_row;
  MergeSpans<kStored>(args, BlockZ(), row, first_head, heads, elements,
                      out_step, spans, shared);
}

}  // namespace baton::engine::cuda
