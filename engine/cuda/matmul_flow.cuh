// Products with 17 to 64 rows on devices with tensor cores of Hopper (wgmma):
// bound by reading the weights once. Warps have a tile of 16 outputs each. A
// warp has its weights copied to the block's memory several slices ahead, and
// takes them from there to registers, where they become bfloat16: each lane
// what it copied itself, so that nobody waits for another.
// Activations are copied for all, and read by the tensor cores themselves;
// barriers say which stages are full, and which nobody reads any more.
//
// The first weights are asked for before earlier kernels have ended.
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
template <WeightFormat kFormat, int kWarps>
struct FlowMemory {
  static constexpr int32_t kStages = FlowStages(kFormat);
  static constexpr int32_t kRowStages = FlowRowStages(kFormat);

  BATON_DEVICE FlowMemory() {
    const uint32_t start = SharedAddress(SharedMemory());
    const uint32_t skip =
        (kFlowAlignment - start % kFlowAlignment) % kFlowAlignment;
    address = start + skip;
    rows = SharedMemory() + skip;
    weights = rows + kRowStages * kFlowRowBytes;
    full = reinterpret_cast<Barrier*>(rows + FlowStagesBytes(kFormat, kWarps));
    empty = full + kRowStages;
  }

  // Chunks' sums, in the end.
  static_assert(kKeptChunks == 2);
  BATON_DEVICE unsigned char* sums() const { return rows; }

  uint32_t address;     // of the stages of activations, for GroupMatrix
  unsigned char* rows;  // these
  unsigned char* weights;
  // Of each stage of activations: they are there; nobody reads them any more.
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

// Sums of a thread: d of GroupMma.
using FlowSums = float[kFlowRows / 2];

// What a warp does with the slices of its tile, one after another.
template <WeightFormat kFormat, int kWarps>
class FlowMultiplier {
 public:
  // A warp without a tile brings no weights, and multiplies what there is.
  BATON_DEVICE FlowMultiplier(const MatmulArgs& args, const FlowPart& part,
                              int64_t tile, bool there,
                              const FlowMemory<kFormat, kWarps>& memory)
      : memory_(memory),
        weights_end_(there ? part.end : part.begin),
        rows_end_(part.end) {
    weights_ = args.w.tiles + tile * TileBytes(kFormat, args.w.padded_inputs) +
               int64_t{part.begin} * SliceBytes(kFormat);
    rows_ = args.x + int64_t{part.begin} * (kStagedRows * kSliceInputs);
    weights_at_ = rows_at_ = part.begin;
  }

  // Before earlier kernels have ended.
  BATON_DEVICE void BeginWeights() {
    for (int32_t s = 0; s + 1 < kStages; ++s) CopyWeights(s);
  }
  // Behind them, and when the barriers are there.
  BATON_DEVICE void BeginRows() {
    FenceForCopies();
    for (int32_t s = 0; s < kRowStages; ++s) CopyRows(s);
  }

  // The sums of slices [begin, end), which are a chunk.
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
      Next(slice > begin, words[0], sums);
      Next(true, words[1], sums);
    }
    if constexpr (!kOneAtATime) GroupMmaAwait(sums);
    // By itself: a branch among products that run would hold them up.
    if (slice < end) {
      Next(slice > begin, words[0], sums);
      if constexpr (!kOneAtATime) GroupMmaAwait(sums);
    }
  }

 private:
  static constexpr int32_t kStages = FlowMemory<kFormat, kWarps>::kStages;
  static constexpr int32_t kRowStages = FlowMemory<kFormat, kWarps>::kRowStages;
  // With grids a slice's products are over before the next one's begin.
  static constexpr bool kOneAtATime = HasSliceGrids(kFormat);
  static constexpr int32_t kPieces = SlicePieces(kFormat);

  BATON_DEVICE unsigned char* WeightsOf(int32_t stage) const {
    return memory_.weights + stage * FlowWeightBytes(kFormat, kWarps) +
           Thread() / 32 * SliceBytes(kFormat);
  }

  // Has the next slice of weights copied, if there is one.
  BATON_DEVICE void CopyWeights(int32_t stage) {
    const bool wanted = weights_at_ < weights_end_;
    unsigned char* const to = WeightsOf(stage);
    const int32_t lane = Thread() % 32;
    if (wanted) {
      BATON_UNROLL
      for (int i = 0; i < kPieces; ++i) {
        CopyWeightsAsync16(to + i * kPieceBytes + lane * 16,
                           weights_ + i * kPieceBytes + lane * 16, true);
      }
      if constexpr (HasSliceGrids(kFormat)) {
        constexpr int32_t kWords = kTileOutputs * 2 / 16;
        if (lane < kWords) {
          CopyWeightsAsync16(to + kPieces * kPieceBytes + lane * 16,
                             weights_ + kPieces * kPieceBytes + lane * 16,
                             true);
        }
      }
    }
    CommitCopies();
    weights_ += SliceBytes(kFormat);
    ++weights_at_;
  }

  // Has the next slice of activations copied, as one piece. Warps take turns.
  BATON_DEVICE void CopyRows(int32_t stage) {
    if (rows_at_ < rows_end_ && Thread() == rows_at_ % kWarps * 32) {
      ArriveExpecting(&memory_.full[stage], kFlowRowBytes);
      CopyToBlock(memory_.rows + stage * kFlowRowBytes, rows_, kFlowRowBytes,
                  &memory_.full[stage]);
    }
    SyncWarp();
    rows_ += kStagedRows * kSliceInputs;
    ++rows_at_;
  }

  // Goes on with the next slice. When it returns, only its products may still
  // run.
  BATON_DEVICE void Next(bool add, uint32_t (&words)[4][4], FlowSums& sums) {
    AwaitCopies<kStages - 2>();
    if constexpr (HasSliceGrids(kFormat)) SyncWarp();  // of other lanes
    StoredSlice<kFormat> stored;
    Load(WeightsOf(stage_), stored);
    ToWords(stored, words);
    // The stage of the slice before.
    if constexpr (HasSliceGrids(kFormat)) SyncWarp();
    CopyWeights(stage_ > 0 ? stage_ - 1 : kStages - 1);
    AwaitBarrier(&memory_.full[row_stage_], row_parity_);
    const uint32_t rows =
        memory_.address + static_cast<uint32_t>(row_stage_ * kFlowRowBytes);
    if constexpr (kOneAtATime) {
      FlowSums apart;
      StartSlice(apart, words, rows, /*add=*/false);
      GroupMmaAwait(apart);
      AddScaled(apart, stored.grids, sums);
    } else {
      StartSlice(sums, words, rows, add);
      GroupMmaAwaitOlder();
    }
    // The slice before is done with. Of the one before that all warps say so
    // about now, and its activations' stage is used again.
    if (++done_ > 1) {
      if (Thread() % 32 == 0) Arrive(&memory_.empty[Before(1)]);
      SyncWarp();
    }
    if (done_ > 2) {
      const int32_t stage = Before(2);
      AwaitBarrier(&memory_.empty[stage],
                   stage < row_stage_ ? row_parity_ : row_parity_ ^ 1);
      CopyRows(stage);
    }
    if (++stage_ == kStages) stage_ = 0;
    if (++row_stage_ == kRowStages) {
      row_stage_ = 0;
      row_parity_ ^= 1;
    }
  }

  // The stage of activations of so many slices before.
  BATON_DEVICE int32_t Before(int32_t slices) const {
    return row_stage_ >= slices ? row_stage_ - slices
                                : row_stage_ - slices + kRowStages;
  }

  // What a lane has of a slice.
  BATON_DEVICE static void Load(const unsigned char* from,
                                StoredSlice<kFormat>& to) {
    const int32_t lane = Thread() % 32;
    BATON_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      to.pieces[i] = Load16(from + i * kPieceBytes + lane * 16);
    }
    if constexpr (HasSliceGrids(kFormat)) {
      to.grids = reinterpret_cast<const uint32_t*>(
          from + kPieces * kPieceBytes)[lane / 4];
    }
  }

  const FlowMemory<kFormat, kWarps>& memory_;
  const int32_t weights_end_;
  const int32_t rows_end_;
  // What is copied next.
  const std::byte* weights_;
  const uint16_t* rows_;
  int32_t weights_at_;
  int32_t rows_at_;
  // Stages that are read next, and the parity of their barriers' phase.
  int32_t stage_ = 0;
  int32_t row_stage_ = 0;
  int32_t row_parity_ = 0;
  int32_t done_ = 0;
};

// A thread's four sums of a row tile, in units of 16 bytes: those of
// neighbouring threads side by side.
BATON_DEVICE int32_t FlowSumPlace(int32_t row_tile, int32_t thread) {
  return row_tile * Threads() + thread;
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
  constexpr int kTogether = 4;  // row tiles
  BATON_UNROLL
  for (int first = 0; first < kFlowRows / 8; first += kTogether) {
    TileTarget<kOutput> targets[kTogether];
    BATON_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      targets[k] = ReadTarget<kOutput>(args, first_output, 8 * (first + k));
    }
    BATON_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      float y[4];
      BATON_UNROLL
      for (int i = 0; i < 4; ++i) y[i] = sums[4 * (first + k) + i];
      PutTile<kOutput>(args, first_output, 8 * (first + k), targets[k], y);
    }
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
// inputs out, and are a cluster. Two blocks of few warps fit on a
// multiprocessor, but for those of formats that have sums besides.
//
// A block has `tiles` of them, of clusters kWarps, else at most so many; of
// SwiGLU an even number.
template <WeightFormat kFormat, int kWarps, MatmulOutput kOutput, bool kShared>
BATON_DENSE_KERNEL(32 * kWarps,
                   kWarps == kFlowFewWarps && !HasSliceGrids(kFormat) ? 2 : 1)
FlowMatmul(MatmulArgs args, int32_t tiles, int32_t blocks) {
  static_assert(!kShared ||
                (kWarps == kFlowFewWarps && kOutput != MatmulOutput::kSwiglu));
  const FlowMemory<kFormat, kWarps> memory;
  const FlowPart part = FlowPartOf(args, blocks);
  const int32_t warp = Thread() / 32;
  const int64_t tile = int64_t{BlockY()} * tiles + warp;
  const bool there = warp < tiles && tile < args.w.output_tiles;
  FlowMultiplier<kFormat, kWarps> multiplier(args, part, tile, there, memory);
  multiplier.BeginWeights();
  if (Thread() == 0) {
    for (int s = 0; s < FlowMemory<kFormat, kWarps>::kRowStages; ++s) {
      InitBarrier(&memory.full[s], 1);
      InitBarrier(&memory.empty[s], kWarps);
    }
    FenceBarriers();
  }
  AwaitEarlierKernels();
  SyncBlock();  // the barriers are there
  multiplier.BeginRows();

  const int64_t first_output = tile * kTileOutputs;
  FlowSums sums = {};  // of a chunk
  if constexpr (kShared) {
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
    AwaitCopies<0>();  // empty groups only
    SyncBlock();       // nobody reads the stages any more
    BATON_UNROLL
    for (int k = 0; k < kKeptChunks; ++k) {
      StoreFlowSums(memory.sums() + k * FlowSumBytes(kWarps), kept[k]);
    }
    // Row tiles that a block adds up together: all that it has, if blocks are
    // four.
    constexpr int kTogether = 2;
    TileTarget<kOutput> targets[kTogether];
    const auto read_targets = [&](int32_t r) {
      BATON_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        targets[t] =
            ReadTarget<kOutput>(args, first_output, 8 * (r + t * blocks));
      }
    };
    read_targets(BlockX());  // while the others are awaited
    SyncCluster();
    // Its sums are in memory, so that nothing is gained by doing this text more
    // than once.
    BATON_NO_UNROLL
    for (int r = BlockX(); r < kFlowRows / 8; r += kTogether * blocks) {
      float y[kTogether][4] = {};
      JoinChunks<kTogether, kMaxChunks>(
          memory.sums(), FlowSumBytes(kWarps), Chunks(args.w.padded_inputs),
          part.own_chunks,
          [&](int t) { return FlowSumPlace(r + t * blocks, Thread()); }, y);
      if (r != BlockX()) read_targets(r);
      BATON_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        PutTile<kOutput>(args, first_output, 8 * (r + t * blocks), targets[t],
                         y[t]);
      }
    }
    // Others may read this block's sums still: a block arrives when it has what
    // it read of theirs, which machine_code_test.py sees to.
    EndCluster();
  } else {
    FlowSums total = {};
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
    AwaitCopies<0>();  // empty groups only
    if constexpr (kOutput == MatmulOutput::kSwiglu) {
      SyncBlock();  // nobody reads the stages any more
      StoreFlowSums(memory.sums(), total);
      SyncBlock();
      if (there) {
        PutGatedFlow(args, tile / 2 * 2 * kTileOutputs, memory.sums());
      }
    } else {
      if (there) PutFlow<kOutput>(args, first_output, total);
    }
  }
}

}  // namespace baton::engine::cuda
