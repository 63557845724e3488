// The kernels of experts.h.
#include "engine/cuda/experts.h"

#include "common/log.h"
#include "device_target.h"
#include "engine/cuda/heads.cuh"

namespace baton::engine::cuda {
namespace {

constexpr uint32_t kRouteThreads = 512;
constexpr int32_t kRouteWarps = kRouteThreads / 32;
constexpr uint32_t kChooseThreads = 128;  // a row per warp
constexpr uint32_t kStageThreads = 256;
constexpr uint32_t kMixThreads = 256;
// Rows up to which the block that sorts chooses, too.
constexpr int32_t kChosenBySorting = 64;
// Elements of a row that a thread has at a time.
constexpr int kMixed = 4;
// Bits of a mask, one for each 32 experts.
constexpr int32_t kMostExperts = 32 * 32;

// A number that orders floats, greater for greater ones; the two zeros are
// equal. Never 0. Of NaNs, some.
BATON_DEVICE uint32_t OrderOf(float x) {
  const uint32_t bits = FloatBits(AddRn(x, 0.0f));
  const uint32_t order = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return order > 0 ? order : 1;
}
BATON_DEVICE float FloatOfOrder(uint32_t order) {
  return BitsFloat(order >> 31 != 0 ? order & 0x7fffffffu : ~order);
}

BATON_DEVICE float ExpOf(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  return Exp2(MulRn(x, kLog2E));
}

// By a warp.
BATON_DEVICE void ChooseRow(const RouteArgs& args, int32_t row) {
  const int32_t lane = Thread() % 32;
  ExpertChoice* const choices = args.choices + int64_t{row} * args.per_token;
  if (args.places != nullptr && args.places[row].position < 0) {
    if (lane < args.per_token) choices[lane] = {-1, -1, 0.0f};
    return;
  }
  const float* const logits = args.logits + row * args.stride;
  uint32_t taken = 0;  // of the lane's experts
  float max = 0.0f;
  float sum = 0.0f;  // of those chosen
  ExpertChoice own;
  for (int32_t i = 0; i < args.per_token; ++i) {
    uint32_t best = 0;  // no float's
    int32_t expert = 0;
    for (int32_t k = 0; 32 * k + lane < args.experts; ++k) {
      const uint32_t order = OrderOf(logits[32 * k + lane]);
      if ((taken >> k & 1) != 0 || order <= best) continue;
      best = order;
      expert = 32 * k + lane;
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      const uint32_t other = ShuffleXor(best, mask);
      const int32_t others = ShuffleXor(expert, mask);
      if (other > best || (other == best && others < expert)) {
        best = other;
        expert = others;
      }
    }
    if (expert % 32 == lane) taken |= 1u << (expert / 32);
    const float logit = FloatOfOrder(best);
    if (i == 0) max = logit;
    const float weight = ExpOf(SubRn(logit, max));
    sum = AddRn(sum, weight);
    if (i == lane) {
      own.expert = expert;
      own.share = weight;
    }
  }
  if (!args.normalized) {
    sum = 0.0f;
    for (int32_t e = lane; e < args.experts; e += 32) {
      sum = AddRn(sum, ExpOf(SubRn(logits[e], max)));
    }
    sum = SumOfWarp(sum);
  }
  if (lane >= args.per_token) return;
  own.share = DivRn(own.share, sum);
  choices[lane] = own;
}

BATON_KERNEL(kChooseThreads)
Choose(RouteArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const int32_t row = BlockX() * (kChooseThreads / 32) + Thread() / 32;
  if (row < args.rows) ChooseRow(args, row);
}

// The block's memory, an entry per expert each; of the first, per warp too.
struct SortShared {
  int32_t* counts;  // of the warp's choices; then of those of earlier warps
  int32_t* totals;
  int32_t* places;  // the first one
  int32_t* tiles;   // the first one

  BATON_DEVICE explicit SortShared(int32_t experts)
      : counts(reinterpret_cast<int32_t*>(SharedMemory())),
        totals(counts + kRouteWarps * experts),
        places(totals + experts),
        tiles(places + experts) {}
};
constexpr int64_t SortSharedBytes(int32_t experts) {
  return int64_t{kRouteWarps + 3} * experts * int64_t{sizeof(int32_t)};
}

// Choices [begin, end) of the warp, 32 at a time: each gets its number among
// the warp's of its expert.
BATON_DEVICE void CountChoices(const RouteArgs& args, int32_t begin,
                               int32_t end, int32_t* counts) {
  const int32_t lane = Thread() % 32;
  for (int32_t first = begin; first < end; first += 32) {
    const int32_t i = first + lane;
    const int32_t expert = i < end ? args.choices[i].expert : -1;
    int32_t before = 0;
    bool last = true;
    for (int mask = 1; mask < 32; ++mask) {
      const bool same = ShuffleXor(expert, mask) == expert;
      if (same && (lane ^ mask) < lane) ++before;
      if (same && (lane ^ mask) > lane) last = false;
    }
    const int32_t number = expert >= 0 ? counts[expert] + before : -1;
    SyncWarp();
    if (expert >= 0) {
      args.choices[i].place = number;
      if (last) counts[expert] = number + 1;
    }
    SyncWarp();
  }
}

// By a warp: where each expert's places and tiles begin, and how many tiles
// there are.
BATON_DEVICE int32_t PlaceExperts(const RouteArgs& args,
                                  const SortShared& shared) {
  const int32_t lane = Thread() % 32;
  int32_t places = 0;
  int32_t tiles = 0;
  int32_t reads = 0;
  for (int32_t first = 0; first < args.experts; first += 32) {
    const int32_t e = first + lane;
    const int32_t rows = e < args.experts ? shared.totals[e] : 0;
    const int32_t own =
        (rows + args.tiling.tile_rows - 1) / args.tiling.tile_rows;
    int32_t rows_to = rows;  // of this lane and those before
    int32_t tiles_to = own;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t more_rows = ShuffleUp(rows_to, step);
      const int32_t more_tiles = ShuffleUp(tiles_to, step);
      if (lane >= step) {
        rows_to += more_rows;
        tiles_to += more_tiles;
      }
    }
    if (e < args.experts) {
      shared.tiles[e] = tiles + tiles_to - own;
      shared.places[e] = args.tiling.staged
                             ? shared.tiles[e] * args.tiling.tile_rows
                             : places + rows_to - rows;
    }
    // Sums of all lanes.
    int32_t all_rows = rows;
    int32_t all_tiles = own;
    int32_t all_reads = rows > 0 ? 1 : 0;
    for (int mask = 16; mask > 0; mask /= 2) {
      all_rows += ShuffleXor(all_rows, mask);
      all_tiles += ShuffleXor(all_tiles, mask);
      all_reads += ShuffleXor(all_reads, mask);
    }
    places += all_rows;
    tiles += all_tiles;
    reads += all_reads;
  }
  if (lane == 0) {
    *args.reads =
        (args.first ? 0u : *args.reads) + static_cast<uint32_t>(reads);
  }
  return tiles;
}

// One block.
BATON_KERNEL(kRouteThreads)
Route(RouteArgs args, bool choose) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const int32_t warp = Thread() / 32;
  if (choose) {
    for (int32_t row = warp; row < args.rows; row += kRouteWarps) {
      ChooseRow(args, row);
    }
  }
  const SortShared shared(args.experts);
  for (int32_t i = Thread(); i < kRouteWarps * args.experts; i += Threads()) {
    shared.counts[i] = 0;
  }
  SyncBlock();
  const int32_t choices = args.rows * args.per_token;
  const int32_t share =
      (choices + kRouteWarps * 32 - 1) / (kRouteWarps * 32) * 32;
  const int32_t begin = warp * share;
  const int32_t end = begin + share < choices ? begin + share : choices;
  CountChoices(args, begin, end, shared.counts + warp * args.experts);
  SyncBlock();
  for (int32_t e = Thread(); e < args.experts; e += Threads()) {
    int32_t total = 0;
    for (int32_t w = 0; w < kRouteWarps; ++w) {
      int32_t& count = shared.counts[w * args.experts + e];
      const int32_t own = count;
      count = total;
      total += own;
    }
    shared.totals[e] = total;
  }
  SyncBlock();
  if (warp == 0) {
    const int32_t tiles = PlaceExperts(args, shared);
    for (int32_t t = tiles + Thread(); t < args.tiling.num_tiles; t += 32) {
      args.tiles[t] = {0, 0, 0};
    }
  }
  SyncBlock();
  for (int32_t e = Thread(); e < args.experts; e += Threads()) {
    RowTile* to = args.tiles + shared.tiles[e];
    for (int32_t first = 0; first < shared.totals[e];
         first += args.tiling.tile_rows) {
      const int32_t left = shared.totals[e] - first;
      *to++ = {e, shared.places[e] + first,
               left < args.tiling.tile_rows ? left : args.tiling.tile_rows};
    }
  }
  for (int32_t i = Thread(); i < choices; i += Threads()) {
    const int32_t expert = args.choices[i].expert;
    if (expert < 0) continue;
    const int32_t place = shared.places[expert] +
                          shared.counts[i / share * args.experts + expert] +
                          args.choices[i].place;
    args.choices[i].place = place;
    args.place_rows[place] = i / args.per_token;
  }
}

// A row per warp, 16 bytes per lane: what is one piece when it is staged
// (InputOrder::kStaged) lies in four words of a row.
BATON_KERNEL(kStageThreads)
StageRows(StageRowsArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const RowTile tile = args.tiles[BlockX()];
  const int32_t row = BlockY() * (kStageThreads / 32) + Thread() / 32;
  if (row >= tile.rows) return;
  const int32_t place = tile.first + row;
  const uint16_t* const from =
      args.from + int64_t{args.place_rows[place]} * args.inputs;
  const int32_t piece = Thread() % 8;
  for (int32_t slice = Thread() % 32 / 8; slice < args.inputs / kSliceInputs;
       slice += 4) {
    const int32_t first = slice * kSliceInputs + piece / 4 * 32 + piece % 4 * 2;
    Word4 words;
    BATON_UNROLL
    for (int j = 0; j < 4; ++j) {
      words.x[j] = *reinterpret_cast<const uint32_t*>(from + first + 8 * j);
    }
    Store16(
        args.to + PlaceOfInput(InputOrder::kStaged, place, first, args.inputs),
        words);
  }
}

BATON_KERNEL(kMixThreads)
Mix(MixArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const ExpertChoice* const choices =
      args.choices + int64_t{BlockX()} * args.per_token;
  float* const out = args.out + int64_t{BlockX()} * args.size;
  constexpr int32_t kStep = kMixThreads;
  const int32_t first = BlockY() * kMixed * kStep + Thread();
  float before[kMixed];
  BATON_UNROLL
  for (int j = 0; j < kMixed; ++j) {
    const int32_t i = first + j * kStep;
    before[j] = args.add && i < args.size ? out[i] : 0.0f;
  }
  float sum[kMixed] = {};
  for (int32_t k = 0; k < args.per_token; ++k) {
    const ExpertChoice choice = choices[k];
    if (choice.expert < 0) continue;
    const float* const said = args.said + int64_t{choice.place} * args.size;
    BATON_UNROLL
    for (int j = 0; j < kMixed; ++j) {
      const int32_t i = first + j * kStep;
      if (i < args.size) sum[j] = AddRn(sum[j], MulRn(choice.share, said[i]));
    }
  }
  BATON_UNROLL
  for (int j = 0; j < kMixed; ++j) {
    const int32_t i = first + j * kStep;
    if (i < args.size) out[i] = args.add ? AddRn(before[j], sum[j]) : sum[j];
  }
}

}  // namespace

void RunRoute(const RouteArgs& args, StreamHandle* stream) {
  CHECK_GT(args.rows, 0);
  CHECK_LE(args.experts, kMostExperts);
  CHECK_LE(args.per_token, kMostExpertsPerToken);
  CHECK_LE(args.per_token, args.experts);
  CHECK_GT(args.tiling.tile_rows, 0);
  const bool choose = args.rows <= kChosenBySorting;
  if (!choose) {
    constexpr int32_t kRows = kChooseThreads / 32;
    LaunchShape shape;
    shape.x = static_cast<uint32_t>((args.rows + kRows - 1) / kRows);
    shape.threads = kChooseThreads;
    Launch(Choose, "choose experts", shape, stream, args);
  }
  LaunchShape shape;
  shape.threads = kRouteThreads;
  shape.shared_bytes = SortSharedBytes(args.experts);
  Launch(Route, "route", shape, stream, args, choose);
}

void RunStageRows(const StageRowsArgs& args, StreamHandle* stream) {
  constexpr int32_t kRows = kStageThreads / 32;
  CHECK(args.tiling.staged);
  CHECK_EQ(args.inputs % kSliceInputs, 0);
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.tiling.num_tiles);
  shape.y = static_cast<uint32_t>(args.tiling.tile_rows / kRows);
  shape.threads = kStageThreads;
  Launch(StageRows, "stage rows", shape, stream, args);
}

void RunMix(const MixArgs& args, StreamHandle* stream) {
  constexpr int32_t kElements = kMixed * static_cast<int32_t>(kMixThreads);
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.rows);
  shape.y = static_cast<uint32_t>((args.size + kElements - 1) / kElements);
  shape.threads = kMixThreads;
  Launch(Mix, "mix experts", shape, stream, args);
}

}  // namespace baton::engine::cuda
