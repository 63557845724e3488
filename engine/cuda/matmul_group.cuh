// Products with many rows on tensor cores of Hopper (wgmma): weights go from
// memory to registers, where they become bfloat16; activations lie in the
// block's memory, from where tensor cores read them by themselves. Four warps
// work on 64 outputs, each on a tile of 16; their sums are added up chunk by
// chunk, as matmul.h says, in the block's memory: of 256 rows there is room for
// one set of sums in registers.
//
// What limits such products is what comes from the cache that all blocks share.
// So a block has as many rows as it can, and two blocks with neighbouring
// outputs are a cluster: each has one half of the activations copied to both. A
// warp by itself does that, slice by slice; barriers say which stages are full,
// and which are empty in both blocks.
//
// Products run beside the loop: while those of a slice do, the next slice's
// weights become bfloat16 in other registers.
#pragma once

#include "device_target.h"
#include "engine/cuda/matmul_experts.cuh"
#include "engine/cuda/matmul_group.h"
#include "engine/cuda/matmul_output.cuh"
#include "engine/cuda/matmul_slice.cuh"

namespace baton::engine::cuda {

template <WeightFormat kFormat>
BATON_DEVICE void ToWords(const StoredSlice<kFormat>& stored,
                          uint32_t (&words)[4][4]) {
  constexpr int kSteps = 4 / SlicePieces(kFormat);
  uint32_t minus[2] = {};
  if constexpr (HasSliceGrids(kFormat)) Int4Zeros(stored.grids, minus);
  BATON_UNROLL
  for (int step = 0; step < 4; ++step) {
    WordsOfStep<kFormat>(stored.pieces[step / kSteps], step % kSteps, minus,
                         words[step]);
    // Those that were computed are.
    if constexpr (kFormat == WeightFormat::kBf16) {
      BATON_UNROLL
      for (uint32_t& word : words[step]) word = OwnWord(word, BlockZ());
    }
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

// to += scale * part: d of GroupMma, whose outputs g have the grid in the low
// half of `grids`, and g + 8 the one in the high half.
template <int kHalf>
BATON_DEVICE void AddScaled(const float (&part)[kHalf], uint32_t grids,
                            float (&to)[kHalf]) {
  const float low = LowScale(grids);
  const float high = HighScale(grids);
  BATON_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    to[i] = FmaRn(part[i], i % 4 < 2 ? low : high, to[i]);
  }
}

// The block's memory.
template <int kRows>
struct GroupMemory {
  static constexpr int kStages = GroupStages(kRows);

  BATON_DEVICE GroupMemory() {
    const uint32_t start = SharedAddress(SharedMemory());
    const uint32_t skip =
        (kGroupAlignment - start % kGroupAlignment) % kGroupAlignment;
    address = start + skip;
    stages = SharedMemory() + skip;
    totals = stages + kStages * GroupStageBytes(kRows);
    full = reinterpret_cast<Barrier*>(totals + GroupTotalBytes(kRows));
    empty = full + kStages;
  }

  static constexpr int kKept = GroupKeptTiles(kRows);

  // Where the four sums of a thread for a row tile are: of those that it kept
  // in registers, in the end, in the stages.
  BATON_DEVICE unsigned char* TotalOf(int32_t row_tile, int32_t thread) const {
    unsigned char* const from = row_tile < kKept ? stages : totals;
    const int32_t place = row_tile < kKept ? row_tile : row_tile - kKept;
    return from + (place * kGroupWarps * 32 + thread) * 16;
  }

  uint32_t address;  // of the stages, for GroupMatrix
  unsigned char* stages;
  unsigned char* totals;
  // Of each stage: its activations are there; nobody reads it any more, in
  // either block.
  Barrier* full;
  Barrier* empty;
};

// Whose rows the blocks of a launch have. Args() are a block's arguments, asked
// for where they are needed, as threads that multiply have no registers to keep
// them in. With kOneTile, its rows are all of these; else the first one is
// BlockX() / kGroupCluster * kRows, which is written out where it is needed:
// from a function that says so the compiler made other code.
//
// All rows have the same matrix.
struct GroupOfRows {
  using Arguments = MatmulArgs;
  static constexpr bool kOneTile = false;
  const MatmulArgs& args;

  BATON_DEVICE const MatmulArgs& Args() const { return args; }
};

// A tile of rows of one expert.
struct GroupOfExpert {
  using Arguments = ExpertMatmulArgs;
  static constexpr bool kOneTile = true;
  const ExpertMatmulArgs& args;

  BATON_DEVICE const RowTile& Tile() const {
    return args.tiles[BlockX() / kGroupCluster];
  }
  BATON_DEVICE MatmulArgs Args() const { return ArgsOfTile(args, Tile()); }
};

// What the warp does that has activations copied: the part that is this block's
// of each stage, for both.
template <int kRows, typename Work>
BATON_DEVICE void FeedStages(const Work& work,
                             const GroupMemory<kRows>& memory) {
  const MatmulArgs& args = work.Args();
  constexpr int kStages = GroupMemory<kRows>::kStages;
  constexpr int32_t kStageBytes = GroupStageBytes(kRows);
  constexpr int32_t kPartBytes = kStageBytes / kGroupCluster;
  constexpr int32_t kPartRows = kRows / kGroupCluster;
  const int32_t slices = args.w.padded_inputs / kSliceInputs;
  const int32_t rank = ClusterRank();
  const int32_t first_row =
      (Work::kOneTile ? 0 : BlockX() / kGroupCluster * kRows);
  // Rows are stored 128 at a time; behind the last of these is nothing.
  const int64_t stored = StagedRows(args.rows);
  const bool mine = first_row + rank * kPartRows < stored;
  const bool all = first_row + (kGroupCluster - 1) * kPartRows < stored;
  const int64_t row = first_row + rank * kPartRows;
  const uint16_t* from =
      args.x + (row / kStagedRows * slices * kStagedRows + row % kStagedRows) *
                   kSliceInputs;
  FenceForCopies();
  int32_t stage = 0;
  int32_t parity = 1;
  for (int32_t slice = 0; slice < slices; ++slice) {
    AwaitBarrier(&memory.empty[stage], parity);
    if (Thread() % 32 == 0) {
      ArriveExpecting(&memory.full[stage], all ? kStageBytes : kPartBytes);
      if (mine) {
        CopyToCluster(memory.stages + stage * kStageBytes + rank * kPartBytes,
                      from, kPartBytes, &memory.full[stage],
                      (1u << kGroupCluster) - 1);
      }
    }
    SyncWarp();
    from += kStagedRows * kSliceInputs;
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// Sums of the chunks so far that a thread keeps.
template <int kRows>
struct KeptSums {
  static constexpr int kTiles = GroupMemory<kRows>::kKept;
  float values[kTiles > 0 ? 4 * kTiles : 1] = {};
};

// What the warps do that multiply: the sums of all chunks, in the block's
// memory and in `kept`.
template <WeightFormat kFormat, int kRows>
BATON_DEVICE void MultiplyStages(const MatmulArgs& args,
                                 const std::byte* weights,
                                 const GroupMemory<kRows>& memory,
                                 KeptSums<kRows>& kept) {
  constexpr int kHalf = kRows / 2;  // sums of a lane
  constexpr int kStages = GroupMemory<kRows>::kStages;
  const int32_t slices = args.w.padded_inputs / kSliceInputs;
  const int32_t chunk_slices = ChunkSlices(args.w.padded_inputs);
  StoredSlice<kFormat> stored;
  LoadSlice(weights, 0, stored);

  float sums[kHalf] = {};  // of a chunk
  // Of even and odd slices: while tensor cores read those of one, the others
  // are made.
  uint32_t words[2][4][4];
  int32_t stage = 0;
  int32_t parity = 0;
  if (Thread() >= kGroupWarps * 32 / 2 && kGroupLag < slices) {
    AwaitBarrier(&memory.full[kGroupLag], 0);
  }

  // The warp reads a stage no more: `back` stages before the next one.
  const auto release = [&](int back) {
    if (Thread() % 32 != 0) return;
    const int32_t which = stage >= back ? stage - back : stage - back + kStages;
    BATON_UNROLL
    for (int32_t rank = 0; rank < kGroupCluster; ++rank) {
      ArriveAt(&memory.empty[which], rank);
    }
  };
  // With grids a slice's products are over before the next one's begin.
  constexpr bool kOneAtATime = HasSliceGrids(kFormat);
  // Starts what is done with a slice; `mine` are its words. When it returns,
  // only this slice's products may still run.
  const auto run = [&](int32_t slice, bool add, auto& mine) {
    AwaitBarrier(&memory.full[stage], parity);
    ToWords(stored, mine);
    const uint32_t at =
        memory.address + static_cast<uint32_t>(stage * GroupStageBytes(kRows));
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
    if constexpr (kOneAtATime) {
      const uint32_t grids = stored.grids;
      float part[kHalf];
      if (slice + 1 < slices) LoadSlice(weights, slice + 1, stored);
      StartSlice(part, mine, at, /*add=*/false);
      GroupMmaAwait(part);
      release(1);
      AddScaled(part, grids, sums);
    } else {
      if (slice + 1 < slices) LoadSlice(weights, slice + 1, stored);
      StartSlice(sums, mine, at, add);
      GroupMmaAwaitOlder();
    }
  };
  for (int32_t begin = 0; begin < slices; begin += chunk_slices) {
    const int32_t end =
        begin + chunk_slices < slices ? begin + chunk_slices : slices;
    int32_t slice = begin;
    for (; slice + 1 < end; slice += 2) {
      run(slice, slice > begin, words[0]);
      if (!kOneAtATime && slice > begin) release(2);
      run(slice + 1, true, words[1]);
      if (!kOneAtATime) release(2);
    }
    if constexpr (!kOneAtATime) {
      GroupMmaAwait(sums);
      if (slice > begin) release(1);
    }
    // By itself: a branch among products that run would hold them up.
    if (slice < end) {
      run(slice, slice > begin, words[0]);
      if constexpr (!kOneAtATime) {
        GroupMmaAwait(sums);
        release(1);
      }
    }
    BATON_UNROLL
    for (int r = 0; r < kRows / 8; ++r) {
      if (r < KeptSums<kRows>::kTiles) {
        BATON_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& to = kept.values[4 * r + i];
          to = AddRn(to, sums[4 * r + i]);
        }
        continue;
      }
      unsigned char* const at = memory.TotalOf(r, Thread());
      float total[4] = {};
      if (begin > 0) LoadSums(at, total);
      BATON_UNROLL
      for (int i = 0; i < 4; ++i) {
        total[i] = AddRn(total[i], sums[4 * r + i]);
        if constexpr (HasSliceGrids(kFormat)) sums[4 * r + i] = 0.0f;
      }
      StoreSums(at, total);
    }
  }
}

// Puts the sums of a warp's tile where they belong. What is known of a tile is
// worked out before the loops: a block is alone on its multiprocessor, and
// nothing hides what it does last.
template <int kRows, MatmulOutput kOutput, typename Work>
BATON_DEVICE void PutTotals(const Work& work, int64_t tile,
                            const GroupMemory<kRows>& memory,
                            const KeptSums<kRows>& kept) {
  static_assert(kOutput != MatmulOutput::kSwiglu);
  const MatmulArgs& args = work.Args();
  // So many row tiles are asked for at once, of what they are added to.
  constexpr int kTogether = 8;
  const int32_t first_row =
      (Work::kOneTile ? 0 : BlockX() / kGroupCluster * kRows) +
      2 * (Thread() % 4);
  const int64_t output = tile * kTileOutputs + Thread() % 32 / 4;
  const TileTarget<kOutput> target =
      ReadFactors<kOutput>(args, tile * kTileOutputs);
  float* at[4];
  bool there[4];
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    at[i] =
        args.out + (first_row + i % 2) * args.out_stride + output + 8 * (i / 2);
    there[i] = output + 8 * (i / 2) < args.w.outputs;
  }
  const int64_t step = 8 * args.out_stride;
  BATON_UNROLL
  for (int first = 0; first < kRows / 8; first += kTogether) {
    float before[kTogether][4];
    if constexpr (kOutput == MatmulOutput::kAdd) {
      BATON_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        BATON_UNROLL
        for (int i = 0; i < 4; ++i) {
          const bool in =
              there[i] && first_row + i % 2 + 8 * (first + k) < args.rows;
          before[k][i] = in ? at[i][k * step] : 0.0f;
        }
      }
    }
    BATON_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      const int r = first + k;
      float y[4];
      if (r < KeptSums<kRows>::kTiles) {
        BATON_UNROLL
        for (int i = 0; i < 4; ++i) y[i] = kept.values[4 * r + i];
      } else {
        LoadSums(memory.TotalOf(r, Thread()), y);
      }
      BATON_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (!there[i] || first_row + i % 2 + 8 * r >= args.rows) continue;
        float value = Finished(args.w, target, i / 2, y[i]);
        if constexpr (kOutput == MatmulOutput::kAdd) {
          value = AddRn(before[k][i], value);
        }
        at[i][k * step] = value;
      }
    }
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) at[i] += kTogether * step;
  }
}

// The same for SwiGLU: tiles of the gate and of up take turns, and so do warps.
// Two of these share their two tiles out by rows. What they kept lies in the
// stages by now.
template <int kRows, typename Work>
BATON_DEVICE void PutGatedTotals(const Work& work, int64_t own_tile,
                                 const GroupMemory<kRows>& memory) {
  const MatmulArgs& args = work.Args();
  constexpr int kMine = kRows / 16;  // row tiles
  const int64_t tile = own_tile / 2 * 2;
  const int32_t part = Thread() / 32 % 2;
  const GatedTarget of_gate =
      ReadFactors<MatmulOutput::kSwiglu>(args, tile * kTileOutputs);
  const GatedTarget of_up =
      ReadFactors<MatmulOutput::kSwiglu>(args, (tile + 1) * kTileOutputs);
  const int32_t first_row =
      (Work::kOneTile ? 0 : BlockX() / kGroupCluster * kRows) +
      part * 8 * kMine + 2 * (Thread() % 4);
  const int32_t element =
      static_cast<int32_t>(tile / 2 * kTileOutputs) + Thread() % 32 / 4;
  uint16_t* at[4];
  bool there[4];
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    at[i] = args.gated + PlaceOfInput(args.gated_order, first_row + i % 2,
                                      element + 8 * (i / 2), args.out_stride);
    there[i] = element + 8 * (i / 2) < args.w.outputs / 2;
  }
  // Eight rows on, in either order: these do not leave their 128.
  static_assert(8 * kMine <= kStagedRows);
  const int64_t step = args.gated_order == InputOrder::kStaged
                           ? 8 * kSliceInputs
                           : 8 * args.out_stride;
  for (int k = 0; k < kMine; ++k) {
    const int32_t r = part * kMine + k;
    float gate[4];
    float up[4];
    LoadSums(memory.TotalOf(r, Thread() & ~32), gate);
    LoadSums(memory.TotalOf(r, Thread() | 32), up);
    float gated[4];
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) {
      gate[i] = Finished(args.w, of_gate, i / 2, gate[i]);
      up[i] = Finished(args.w, of_up, i / 2, up[i]);
    }
    Gate4(gate, up, args.swiglu_limit, args.gelu, gated);
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (there[i] && first_row + i % 2 + 8 * k < args.rows) {
        *at[i] = static_cast<uint16_t>(PackBf16(gated[i], 0.0f));
      }
      at[i] += step;
    }
  }
}

template <WeightFormat kFormat, int kRows, MatmulOutput kOutput,
          typename Work = GroupOfRows>
BATON_DENSE_KERNEL(kGroupThreads, 1)
GroupMatmul(typename Work::Arguments arguments) {
  const Work work = {arguments};
  if constexpr (Work::kOneTile) {
    // What there is to do is not known before.
    LetNextKernelBegin();
    AwaitEarlierKernels();
    if (work.Tile().rows == 0) return;  // both blocks
  }
  const GroupMemory<kRows> memory;
  const int32_t warp = Thread() / 32;
  if (Thread() == 0) {
    for (int s = 0; s < GroupMemory<kRows>::kStages; ++s) {
      InitBarrier(&memory.full[s], 1);
      InitBarrier(&memory.empty[s], kGroupCluster * kGroupWarps);
    }
    FenceBarriers();
  }
  if constexpr (!Work::kOneTile) {
    LetNextKernelBegin();
    AwaitEarlierKernels();
  }
  SyncCluster();  // the barriers of both blocks are there
  // Each branch by itself to its end: what comes behind both has the registers
  // of the one that has few.
  if (warp >= kGroupWarps) {
    GiveRegisters<kGroupFewRegisters>();
    if (warp == kGroupWarps) FeedStages<kRows>(work, memory);
    SyncBlockApart();
    if constexpr (kOutput == MatmulOutput::kSwiglu) SyncBlockApart();
  } else {
    TakeRegisters<kGroupRegisters>();
    const int64_t block =
        int64_t{BlockY()} * kGroupCluster + BlockX() % kGroupCluster;
    const int64_t tile = block * kGroupWarps + warp;
    const MatmulArgs& args = work.Args();
    const bool there = tile < args.w.output_tiles;
    KeptSums<kRows> kept;
    MultiplyStages<kFormat, kRows>(
        args,
        args.w.tiles +
            (there ? tile : 0) * TileBytes(kFormat, args.w.padded_inputs),
        memory, kept);
    SyncBlockApart();
    if constexpr (kOutput == MatmulOutput::kSwiglu) {
      // Nobody reads the stages any more.
      BATON_UNROLL
      for (int r = 0; r < KeptSums<kRows>::kTiles; ++r) {
        StoreSums(memory.TotalOf(r, Thread()), kept.values + 4 * r);
      }
      SyncBlockApart();
      if (there) PutGatedTotals<kRows>(work, tile, memory);
    } else {
      if (there) PutTotals<kRows, kOutput>(work, tile, memory, kept);
    }
  }
  SyncCluster();  // nobody copies or arrives here any more
}

}  // namespace baton::engine::cuda
