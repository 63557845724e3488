// Products with many rows on tensor cores of Hopper (wgmma): weights go from
// memory to registers, where they become bfloat16; activations lie in the
// block's memory, from where tensor cores read them by themselves. Four warps
// work on 64 outputs, each on a tile of 16; their sums are added up chunk by
// chunk, as matmul.h says.
//
// Products run beside the loop: while those of a slice do, the next slice's
// weights become bfloat16 in other registers.
//
// Never ran on a GPU: run on the emulated device only (docs/gpu.md).
#pragma once

#include "device_target.h"
#include "engine/cuda/matmul_group.h"
#include "engine/cuda/matmul_output.cuh"
#include "engine/cuda/matmul_slice.cuh"

namespace baton::engine::cuda {

// Where piece `piece` of 16 bytes of a row lies in a stage, in units of 16
// bytes.
BATON_DEVICE int32_t GroupPlace(int32_t row, int32_t piece) {
  return row * 8 + (piece ^ row % 8);
}

// What a lane has of a slice of a tile, as it lies in memory.
template <WeightFormat kFormat>
struct StoredSlice {
  Word4 pieces[SlicePieces(kFormat)];
  uint32_t scales = 0;  // where the format has them
};

template <WeightFormat kFormat>
BATON_DEVICE void LoadSlice(const std::byte* tile, int32_t slice,
                            StoredSlice<kFormat>& to) {
  const std::byte* const from = tile + int64_t{slice} * SliceBytes(kFormat);
  const int32_t lane = Thread() % 32;
  BATON_UNROLL
  for (int i = 0; i < SlicePieces(kFormat); ++i) {
    to.pieces[i] = Load16(from + i * kPieceBytes + lane * 16);
  }
  if constexpr (HasSliceScales(kFormat)) {
    to.scales = reinterpret_cast<const uint32_t*>(
        from + SlicePieces(kFormat) * kPieceBytes)[lane / 4];
  }
}

template <WeightFormat kFormat>
BATON_DEVICE void ToWords(const StoredSlice<kFormat>& stored,
                          uint32_t (&words)[4][4]) {
  constexpr int kSteps = 4 / SlicePieces(kFormat);
  BATON_UNROLL
  for (int step = 0; step < 4; ++step) {
    WordsOfStep<kFormat>(stored.pieces[step / kSteps], step % kSteps,
                         words[step]);
  }
}

// Gives the products of a slice to the tensor cores: sums += words * stage, or
// without `add`, sums = that.
template <int kHalf>
BATON_DEVICE void StartSlice(float (&sums)[kHalf], uint32_t (&words)[4][4],
                             uint32_t stage, bool add) {
  GroupMmaBegin(words);
  BATON_UNROLL
  for (int step = 0; step < 4; ++step) {
    GroupMma(sums, words[step], GroupMatrix(stage + step * 32),
             add || step > 0);
  }
  GroupMmaCommit();
}

// to += from, element by element.
template <int kHalf>
BATON_DEVICE void AddSums(const float (&from)[kHalf], float (&to)[kHalf]) {
  BATON_UNROLL
  for (int i = 0; i < kHalf; ++i) to[i] = AddRn(to[i], from[i]);
}

// to += scale * part: d of GroupMma, whose outputs g have the scale in the low
// half of `scales`, and g + 8 the one in the high half.
template <int kHalf>
BATON_DEVICE void AddScaled(const float (&part)[kHalf], uint32_t scales,
                            float (&to)[kHalf]) {
  const float low = BitsFloat(scales << 16);
  const float high = BitsFloat(scales & 0xffff0000u);
  BATON_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    to[i] = FmaRn(part[i], i % 4 < 2 ? low : high, to[i]);
  }
}

// What a warp has of row tile `r`.
template <int kHalf>
BATON_DEVICE void SumsOfTile(const float (&total)[kHalf], int r,
                             float (&y)[4]) {
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) y[i] = total[4 * r + i];
}

template <WeightFormat kFormat, MatmulOutput kOutput>
BATON_KERNEL(kGroupThreads)
GroupMatmul(MatmulArgs args) {
  AwaitEarlierKernels();
  constexpr int kRows = GroupRows(kFormat);
  constexpr int kHalf = kRows / 2;  // sums of a lane
  constexpr int32_t kStageBytes = GroupStageBytes(kFormat);
  constexpr int kAhead = kGroupStages - 2;
  const uint32_t start = SharedAddress(SharedMemory());
  const uint32_t skip =
      (kGroupAlignment - start % kGroupAlignment) % kGroupAlignment;
  unsigned char* const stages = SharedMemory() + skip;
  const int32_t warp = Thread() / 32;
  const int32_t first_row = BlockX() * kRows;
  const int64_t tile =
      int64_t{BlockY()} * (kGroupOutputs / kTileOutputs) + warp;
  const bool there = tile < args.w.output_tiles;
  const std::byte* const weights =
      args.w.tiles +
      (there ? tile : 0) * TileBytes(kFormat, args.w.padded_inputs);
  const int32_t slices = args.w.padded_inputs / kSliceInputs;
  const int32_t chunk_slices = ChunkSlices(args.w.padded_inputs);

  BATON_UNROLL
  for (int s = 0; s < kAhead; ++s) {
    if (s < slices) {
      FetchActivations<kRows>(args, first_row, s, stages + s * kStageBytes,
                              GroupPlace);
    }
    CommitCopies();
  }
  StoredSlice<kFormat> stored;
  LoadSlice(weights, 0, stored);

  float total[kHalf] = {};
  float sums[kHalf] = {};  // of a chunk
  // Of even and odd slices: while tensor cores read those of one, the others
  // are made.
  uint32_t words[2][4][4];

  // Starts what is done with a slice, the first of a chunk or not; `mine` are
  // its words.
  const auto run = [&](int32_t slice, bool first, auto& mine) {
    // It is there for all, and all are done with the one before the last.
    AwaitCopies<kAhead - 1>();
    FenceForTensorCores();
    SyncBlock();
    const int32_t ahead = slice + kAhead;
    if (ahead < slices) {
      FetchActivations<kRows>(args, first_row, ahead,
                              stages + ahead % kGroupStages * kStageBytes,
                              GroupPlace);
    }
    CommitCopies();

    ToWords(stored, mine);
    const uint32_t stage =
        start + skip +
        static_cast<uint32_t>(slice % kGroupStages * kStageBytes);
    if constexpr (HasSliceScales(kFormat)) {
      const uint32_t scales = stored.scales;
      float part[kHalf];
      StartSlice(part, mine, stage, /*add=*/false);
      if (slice + 1 < slices) LoadSlice(weights, slice + 1, stored);
      GroupMmaAwait(part);
      AddScaled(part, scales, sums);
    } else {
      StartSlice(sums, mine, stage, /*add=*/!first);
      if (slice + 1 < slices) LoadSlice(weights, slice + 1, stored);
      GroupMmaAwaitOlder();
    }
  };
  for (int32_t begin = 0; begin < slices; begin += chunk_slices) {
    const int32_t end =
        begin + chunk_slices < slices ? begin + chunk_slices : slices;
    int32_t slice = begin;
    for (; slice + 1 < end; slice += 2) {
      run(slice, slice == begin, words[0]);
      run(slice + 1, false, words[1]);
    }
    GroupMmaAwait(sums);
    // By itself: a branch among products that run would hold them up.
    if (slice < end) {
      run(slice, slice == begin, words[0]);
      GroupMmaAwait(sums);
    }
    AddSums(sums, total);
    if constexpr (HasSliceScales(kFormat)) {
      BATON_UNROLL
      for (int i = 0; i < kHalf; ++i) sums[i] = 0.0f;
    }
  }
  AwaitCopies<0>();  // empty groups only

  if constexpr (kOutput == MatmulOutput::kSwiglu) {
    // Tiles of the gate and of up take turns, and so do warps: those of up hand
    // theirs over.
    float* const handed = reinterpret_cast<float*>(stages) +
                          int64_t{warp / 2} * kHalf * 32 + Thread() % 32;
    SyncBlock();  // nobody reads activations any more
    if (warp % 2 == 1) {
      BATON_UNROLL
      for (int i = 0; i < kHalf; ++i) handed[i * 32] = total[i];
    }
    SyncBlock();
    if (warp % 2 == 1 || !there) return;
    BATON_UNROLL
    for (int r = 0; r < kRows / 8; ++r) {
      float gate[4];
      float up[4];
      SumsOfTile(total, r, gate);
      BATON_UNROLL
      for (int i = 0; i < 4; ++i) up[i] = handed[(4 * r + i) * 32];
      PutGatedTile(args, tile * kTileOutputs, first_row + 8 * r, gate, up);
    }
  } else {
    if (!there) return;
    BATON_UNROLL
    for (int r = 0; r < kRows / 8; ++r) {
      float y[4];
      SumsOfTile(total, r, y);
      PutTile<kOutput>(args, tile * kTileOutputs, first_row + 8 * r, y);
    }
  }
}

}  // namespace baton::engine::cuda
