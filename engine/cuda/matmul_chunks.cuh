// How blocks of a cluster that share a product's inputs out, by chunks, join
// the sums of these: each keeps its own in its memory, and adds up those of
// some rows, in the chunks' order, from the memory of all. See matmul.h.
#pragma once

#include <cstdint>

#include "device_target.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/matmul_output.cuh"

namespace baton::engine::cuda {

// Adds the sums of all chunks of kTiles tiles to y. Those of the cluster's
// first `own_chunks` (kKeptChunks at most) are in its first block's memory, at
// `kept`, and so on: chunk by chunk `chunk_bytes`, of which place_of(t) is
// where the thread's four of tile t lie, in units of 16 bytes. So many chunks'
// sums are asked for at once: other blocks' memory is far.
template <int kTiles, int kChunksAtOnce, typename PlaceOf>
BATON_DEVICE void JoinChunks(const unsigned char* kept, int32_t chunk_bytes,
                             int32_t chunks, int32_t own_chunks,
                             const PlaceOf& place_of, float (&y)[kTiles][4]) {
  static_assert(kKeptChunks == 2);
  BATON_NO_UNROLL
  for (int first = 0; first < chunks; first += kChunksAtOnce) {
    Word4 parts[kChunksAtOnce][kTiles] = {};
    BATON_UNROLL
    for (int k = 0; k < kChunksAtOnce; ++k) {
      const int32_t c = first + k;
      const int32_t rank = c >> (own_chunks - 1);
      const unsigned char* const from =
          kept + (c & (own_chunks - 1)) * chunk_bytes;
      BATON_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        LoadCluster16(from + place_of(t) * 16, rank, c < chunks, parts[k][t]);
      }
    }
    BATON_UNROLL
    for (int k = 0; k < kChunksAtOnce; ++k) {
      BATON_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        BATON_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float more = AddRn(y[t][i], BitsFloat(parts[k][t].x[i]));
          y[t][i] = first + k < chunks ? more : y[t][i];
        }
      }
    }
  }
}

}  // namespace baton::engine::cuda
