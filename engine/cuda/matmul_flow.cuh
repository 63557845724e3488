// Products with 17 to 64 rows on devices with tensor cores of Hopper (wgmma):
// bound by reading the weights once. A warp by itself has slices of weights and
// of activations copied to the block's memory, several ahead; barriers say
// which stages are full, and which nobody reads any more. Eight warps, each
// with a tile of 16 outputs, take their weights from there to registers, where
// they become bfloat16; activations are read by the tensor cores themselves.
// No thread waits for memory but where a slice is late.
//
// The first stages of weights are asked for before earlier kernels have ended.
//
// Matrices with few outputs have too few such blocks to keep memory busy: their
// inputs are shared out among a cluster of blocks (matmul_chunks.cuh).
#pragma once

#include "device_target.h"
#include "engine/cuda/matmul_chunks.cuh"
#include "engine/cuda/matmul_flow.h"
#include "engine/cuda/matmul_group.cuh"
#include "engine/cuda/matmul_output.cuh"
#include "engine/cuda/matmul_slice.cuh"

namespace baton::engine::cuda {

// The block's memory.
template <WeightFormat kFormat>
struct FlowMemory {
  static constexpr int32_t kStages = FlowStages(kFormat);
  static constexpr int32_t kStageBytes = FlowStageBytes(kFormat);
  // Two chunks' sums are where stages were.
  static_assert(kStages * kStageBytes >= kKeptChunks * kFlowSumBytes);

  BATON_DEVICE FlowMemory() {
    const uint32_t start = SharedAddress(SharedMemory());
    const uint32_t skip =
        (kFlowAlignment - start % kFlowAlignment) % kFlowAlignment;
    address = start + skip;
    stages = SharedMemory() + skip;
    full = reinterpret_cast<Barrier*>(stages + kStages * kStageBytes);
    empty = full + kStages;
  }

  uint32_t address;  // of the stages, for GroupMatrix
  unsigned char* stages;
  // Of each stage: all of its slice is there; nobody reads it any more.
  Barrier* full;
  Barrier* empty;
};

// Which slices of the inputs are the block's, of those that share them out.
struct FlowPart {
  int32_t begin;
  int32_t end;
  int32_t chunk_slices;
  int32_t own_chunks;  // at most
};
BATON_DEVICE FlowPart FlowPartOf(const MatmulArgs& args, int32_t blocks) {
  const int32_t slices = args.w.padded_inputs / kSliceInputs;
  FlowPart part;
  part.chunk_slices = ChunkSlices(args.w.padded_inputs);
  part.own_chunks = (Chunks(args.w.padded_inputs) + blocks - 1) / blocks;
  const int32_t wanted = BlockX() * part.own_chunks * part.chunk_slices;
  part.begin = wanted < slices ? wanted : slices;
  const int32_t end = part.begin + part.own_chunks * part.chunk_slices;
  part.end = end < slices ? end : slices;
  return part;
}

// Where slices of the block's tile `t` begin. A tile that is not there is read
// as the last one, and goes nowhere.
template <WeightFormat kFormat>
BATON_DEVICE const std::byte* FlowTile(const MatmulArgs& args, int32_t t) {
  const int64_t wanted = int64_t{BlockY()} * kFlowWarps + t;
  const int64_t tile =
      wanted < args.w.output_tiles ? wanted : args.w.output_tiles - 1;
  return args.w.tiles + tile * TileBytes(kFormat, args.w.padded_inputs);
}

// Has the tiles' weights of a slice copied to a stage: those of `first` and,
// `step` by `step`, of others.
template <WeightFormat kFormat>
BATON_DEVICE void CopyFlowWeights(const MatmulArgs& args, int32_t slice,
                                  int32_t stage, int32_t first, int32_t step,
                                  const FlowMemory<kFormat>& memory) {
  constexpr int32_t kBytes = SliceBytes(kFormat);
  for (int32_t t = first; t < kFlowWarps; t += step) {
    CopyWeightsToBlock(memory.stages +
                           stage * FlowMemory<kFormat>::kStageBytes +
                           kFlowRowBytes + t * kBytes,
                       FlowTile<kFormat>(args, t) + int64_t{slice} * kBytes,
                       kBytes, &memory.full[stage]);
  }
}

// What the warp's first thread does before earlier kernels have ended.
template <WeightFormat kFormat>
BATON_DEVICE void BeginFlow(const MatmulArgs& args, const FlowPart& part,
                            const FlowMemory<kFormat>& memory) {
  for (int32_t s = 0; s < FlowMemory<kFormat>::kStages; ++s) {
    InitBarrier(&memory.full[s], 1);
    InitBarrier(&memory.empty[s], kFlowWarps);
  }
  FenceBarriers();
  for (int32_t s = 0; s < FlowMemory<kFormat>::kStages; ++s) {
    if (part.begin + s >= part.end) break;
    ArriveExpecting(&memory.full[s], FlowSliceBytes(kFormat));
    CopyFlowWeights<kFormat>(args, part.begin + s, s, 0, 1, memory);
  }
}

// What the warp does that has slices copied.
template <WeightFormat kFormat>
BATON_DEVICE void FeedFlow(const MatmulArgs& args, const FlowPart& part,
                           const FlowMemory<kFormat>& memory) {
  const int32_t lane = Thread() % 32;
  FenceForCopies();
  int32_t stage = 0;
  int32_t parity = 1;
  bool again = false;  // stages have been full before
  for (int32_t slice = part.begin; slice < part.end; ++slice) {
    if (again) {
      AwaitBarrier(&memory.empty[stage], parity);
      if (lane == 0) {
        ArriveExpecting(&memory.full[stage], FlowSliceBytes(kFormat));
      }
      SyncWarp();
      CopyFlowWeights<kFormat>(args, slice, stage, lane, 32, memory);
    }
    if (lane == kFlowWarps) {
      CopyToBlock(memory.stages + stage * FlowMemory<kFormat>::kStageBytes,
                  args.x + int64_t{slice} * (kStagedRows * kSliceInputs),
                  kFlowRowBytes, &memory.full[stage]);
    }
    if (++stage == FlowMemory<kFormat>::kStages) {
      stage = 0;
      parity ^= 1;
      again = true;
    }
  }
}

// What a lane of a warp that multiplies has of a stage.
template <WeightFormat kFormat>
BATON_DEVICE void LoadFlowSlice(const unsigned char* stage,
                                StoredSlice<kFormat>& to) {
  const unsigned char* const from =
      stage + kFlowRowBytes + Thread() / 32 * SliceBytes(kFormat);
  const int32_t lane = Thread() % 32;
  BATON_UNROLL
  for (int i = 0; i < SlicePieces(kFormat); ++i) {
    to.pieces[i] = Load16(from + i * kPieceBytes + lane * 16);
  }
  if constexpr (HasSliceGrids(kFormat)) {
    to.grids = reinterpret_cast<const uint32_t*>(
        from + SlicePieces(kFormat) * kPieceBytes)[lane / 4];
  }
}

// Sums of a thread: d of GroupMma.
using FlowSums = float[kFlowRows / 2];

// What the warps do that multiply, and how far they are.
template <WeightFormat kFormat>
class FlowMultiplier {
 public:
  BATON_DEVICE explicit FlowMultiplier(const FlowMemory<kFormat>& memory)
      : memory_(memory) {}

  // The sums of the next slices, [begin, end), which are a chunk.
  BATON_DEVICE void Run(int32_t begin, int32_t end, FlowSums& sums) {
    if constexpr (kOneAtATime) {
      BATON_UNROLL
      for (int i = 0; i < kFlowRows / 2; ++i) sums[i] = 0.0f;
    }
    // Of even and odd slices: while tensor cores read those of one, the others
    // are made.
    uint32_t words[2][4][4];
    int32_t slice = begin;
    for (; slice + 1 < end; slice += 2) {
      Start(slice > begin, words[0], sums);
      if (!kOneAtATime && slice > begin) Release(2);
      Start(true, words[1], sums);
      if (!kOneAtATime) Release(2);
    }
    if constexpr (!kOneAtATime) {
      GroupMmaAwait(sums);
      if (slice > begin) Release(1);
    }
    // By itself: a branch among products that run would hold them up.
    if (slice < end) {
      Start(slice > begin, words[0], sums);
      if constexpr (!kOneAtATime) {
        GroupMmaAwait(sums);
        Release(1);
      }
    }
  }

 private:
  static constexpr int32_t kStages = FlowMemory<kFormat>::kStages;
  // With grids a slice's products are over before the next one's begin.
  static constexpr bool kOneAtATime = HasSliceGrids(kFormat);

  // The warp reads a stage no more: `back` stages before the next one.
  BATON_DEVICE void Release(int32_t back) {
    if (Thread() % 32 != 0) return;
    Arrive(&memory_.empty[stage_ >= back ? stage_ - back
                                         : stage_ - back + kStages]);
  }

  // Starts what is done with the next slice. When it returns, only its products
  // may still run.
  BATON_DEVICE void Start(bool add, uint32_t (&words)[4][4], FlowSums& sums) {
    AwaitBarrier(&memory_.full[stage_], parity_);
    const int32_t at = stage_ * FlowMemory<kFormat>::kStageBytes;
    StoredSlice<kFormat> stored;
    LoadFlowSlice<kFormat>(memory_.stages + at, stored);
    ToWords(stored, words);
    const uint32_t rows = memory_.address + static_cast<uint32_t>(at);
    if (++stage_ == kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
    if constexpr (kOneAtATime) {
      FlowSums apart;
      StartSlice(apart, words, rows, /*add=*/false);
      GroupMmaAwait(apart);
      Release(1);
      AddScaled(apart, stored.grids, sums);
    } else {
      StartSlice(sums, words, rows, add);
      GroupMmaAwaitOlder();
    }
  }

  const FlowMemory<kFormat>& memory_;
  int32_t stage_ = 0;
  int32_t parity_ = 0;
};

// A thread's four sums of a row tile, in units of 16 bytes: those of
// neighbouring threads side by side.
BATON_DEVICE int32_t FlowSumPlace(int32_t row_tile, int32_t thread) {
  return row_tile * (32 * kFlowWarps) + thread;
}
BATON_DEVICE void StoreFlowSums(unsigned char* to, const FlowSums& sums) {
  BATON_UNROLL
  for (int r = 0; r < kFlowRows / 8; ++r) {
    StoreSums(to + FlowSumPlace(r, Thread()) * 16, sums + 4 * r);
  }
}

// Puts all sums of a warp's tile where they belong.
template <MatmulOutput kOutput>
BATON_DEVICE void PutFlow(const MatmulArgs& args, int64_t first_output,
                          const FlowSums& sums) {
  constexpr int kRowTiles = kFlowRows / 8;
  TileTarget<kOutput> targets[kRowTiles];
  BATON_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    targets[r] = ReadTarget<kOutput>(args, first_output, 8 * r);
  }
  BATON_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    float y[4];
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) y[i] = sums[4 * r + i];
    PutTile<kOutput>(args, first_output, 8 * r, targets[r], y);
  }
}

// The same for SwiGLU: tiles of the gate and of up take turns, and so do warps.
// Two of these share their two tiles out by rows. The sums of all warps lie at
// `totals`.
BATON_DEVICE void PutGatedFlow(const MatmulArgs& args, int64_t first_output,
                               const unsigned char* totals) {
  constexpr int kMine = kFlowRows / 16;  // row tiles
  const GatedTarget of_gate =
      ReadFactors<MatmulOutput::kSwiglu>(args, first_output);
  const GatedTarget of_up =
      ReadFactors<MatmulOutput::kSwiglu>(args, first_output + kTileOutputs);
  BATON_UNROLL
  for (int k = 0; k < kMine; ++k) {
    const int32_t r = Thread() / 32 % 2 * kMine + k;
    float gate[4];
    float up[4];
    LoadSums(totals + FlowSumPlace(r, Thread() & ~32) * 16, gate);
    LoadSums(totals + FlowSumPlace(r, Thread() | 32) * 16, up);
    PutGatedTile(args, first_output, 8 * r, of_gate, of_up, gate, up);
  }
}

// A block of the product's outputs, in y; with kShared those of x share its
// inputs out, and are a cluster.
template <WeightFormat kFormat, MatmulOutput kOutput, bool kShared>
BATON_DENSE_KERNEL(kFlowThreads, 1)
FlowMatmul(MatmulArgs args, int32_t blocks) {
  static_assert(!kShared || kOutput != MatmulOutput::kSwiglu);
  const FlowMemory<kFormat> memory;
  const FlowPart part = FlowPartOf(args, blocks);
  const int32_t warp = Thread() / 32;
  if (Thread() == kFlowWarps * 32) BeginFlow<kFormat>(args, part, memory);
  AwaitEarlierKernels();
  SyncBlock();  // the barriers are there

  const int64_t tile = int64_t{BlockY()} * kFlowWarps + warp;
  const int64_t first_output = tile * kTileOutputs;
  if (warp == kFlowWarps) {
    FeedFlow<kFormat>(args, part, memory);
    LetNextKernelBegin();
    if constexpr (kShared) {
      SyncBlockApart();
      SyncCluster();
      EndCluster();
    } else if constexpr (kOutput == MatmulOutput::kSwiglu) {
      SyncBlockApart();
      SyncBlockApart();
    }
    return;
  }
  FlowMultiplier<kFormat> multiplier(memory);
  if constexpr (kShared) {
    FlowSums sums = {};
    FlowSums kept[kKeptChunks] = {};
    BATON_UNROLL
    for (int k = 0; k < kKeptChunks; ++k) {
      const int32_t begin = part.begin + k * part.chunk_slices;
      const int32_t end = begin + part.chunk_slices;
      if (k >= part.own_chunks || begin >= part.end) break;
      multiplier.Run(begin, end < part.end ? end : part.end, sums);
      // Added, not copied: ptxas would make them the registers that the
      // products add to, and products wait for each other.
      BATON_UNROLL
      for (int i = 0; i < kFlowRows / 2; ++i) {
        kept[k][i] = AddRn(kept[k][i], sums[i]);
      }
    }
    LetNextKernelBegin();
    SyncBlockApart();  // nobody reads the stages any more
    BATON_UNROLL
    for (int k = 0; k < kKeptChunks; ++k) {
      StoreFlowSums(memory.stages + k * kFlowSumBytes, kept[k]);
    }
    SyncCluster();
    // Its sums are in memory, so that nothing is gained by doing this text more
    // than once.
    BATON_NO_UNROLL
    for (int r = BlockX(); r < kFlowRows / 8; r += blocks) {
      float y[1][4] = {};
      JoinChunks<1>(
          memory.stages, kFlowSumBytes, Chunks(args.w.padded_inputs),
          part.own_chunks, [&](int) { return FlowSumPlace(r, Thread()); }, y);
      const TileTarget<kOutput> target =
          ReadTarget<kOutput>(args, first_output, 8 * r);
      PutTile<kOutput>(args, first_output, 8 * r, target, y[0]);
    }
    // Others may read this block's sums still: a block arrives when it has what
    // it read of theirs, which machine_code_test.py sees to.
    EndCluster();
  } else {
    FlowSums total = {};
    FlowSums sums = {};
    for (int32_t begin = part.begin; begin < part.end;
         begin += part.chunk_slices) {
      const int32_t end = begin + part.chunk_slices;
      multiplier.Run(begin, end < part.end ? end : part.end, sums);
      BATON_UNROLL
      for (int i = 0; i < kFlowRows / 2; ++i) {
        total[i] = AddRn(total[i], sums[i]);
      }
    }
    LetNextKernelBegin();
    if constexpr (kOutput == MatmulOutput::kSwiglu) {
      SyncBlockApart();  // nobody reads the stages any more
      StoreFlowSums(memory.stages, total);
      SyncBlockApart();
      if (tile < args.w.output_tiles) {
        PutGatedFlow(args, tile / 2 * 2 * kTileOutputs, memory.stages);
      }
    } else {
      if (tile < args.w.output_tiles) {
        PutFlow<kOutput>(args, first_output, total);
      }
    }
  }
}

}  // namespace baton::engine::cuda
