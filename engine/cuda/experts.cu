// The kernels of experts.h.
#include "engine/cuda/experts.h"

#include <limits>

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
// Experts whose logits a lane holds.
constexpr int kHeld = 8;
// Elements of a row that a thread has, and outputs of experts that it asks for
// at once.
constexpr int kMixed = 2;
constexpr int kMixedTogether = 8;
// Bits of a mask, one for each 32 experts.
static_assert(kMostExperts == 32 * 32);

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

BATON_DEVICE float SigmoidOf(float x) {
  return DivRn(1.0f, AddRn(1.0f, ExpOf(-x)));
}

// Experts of a layer, and those that a row goes through.
BATON_DEVICE int32_t AllExperts(const RouteArgs& args) {
  return args.experts + args.shared;
}
BATON_DEVICE int32_t PassedExperts(const RouteArgs& args) {
  return args.per_token + args.shared;
}

// What expert `e` is chosen by.
BATON_DEVICE float ScoreOf(const RouteArgs& args, const float* logits,
                           int32_t e) {
  if (!args.sigmoid) return logits[e];
  const float score = SigmoidOf(logits[e]);
  return args.choice_bias == nullptr ? score
                                     : AddRn(score, args.choice_bias[e]);
}

// A lane's order and whose it is become the greatest of the warp's, of equal
// ones the first.
BATON_DEVICE void TakeBest(uint32_t& order, int32_t& whose) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint32_t other = ShuffleXor(order, mask);
    const int32_t others = ShuffleXor(whose, mask);
    if (other > order || (other == order && others < whose)) {
      order = other;
      whose = others;
    }
  }
}

constexpr float kLeastScore = -std::numeric_limits<float>::infinity();

// The groups that a row may choose from, a bit each. By a warp: a lane has a
// group.
BATON_DEVICE uint32_t ChooseGroups(const RouteArgs& args, const float* logits) {
  if (args.groups == 1) return 1;
  const int32_t lane = Thread() % 32;
  const int32_t size = args.experts / args.groups;
  float first = kLeastScore;
  float second = kLeastScore;
  for (int32_t i = 0; i < size && lane < args.groups; ++i) {
    const float score = ScoreOf(args, logits, lane * size + i);
    second = score > first ? first : score > second ? score : second;
    first = score > first ? score : first;
  }
  uint32_t own = 0;
  if (lane < args.groups) {
    own = OrderOf(args.sigmoid ? AddRn(first, second) : first);
  }
  uint32_t chosen = 0;
  for (int32_t i = 0; i < args.chosen_groups; ++i) {
    uint32_t best = own;
    int32_t group = lane;
    TakeBest(best, group);
    chosen |= 1u << group;
    if (lane == group) own = 0;
  }
  return chosen;
}

// By a warp.
BATON_DEVICE void ChooseRow(const RouteArgs& args, int32_t row) {
  const int32_t lane = Thread() % 32;
  const int32_t passed = PassedExperts(args);
  ExpertChoice* const choices = args.choices + int64_t{row} * passed;
  if (args.row_places != nullptr && args.row_places[row].position < 0) {
    if (lane < passed) choices[lane] = {-1, -1, 0.0f};
    return;
  }
  const float* const logits = args.logits + row * args.stride;
  const uint32_t groups = ChooseGroups(args, logits);
  const int32_t group_size = args.experts / args.groups;
  const auto order_of = [&](int32_t e) {
    if (args.groups > 1 && (groups >> (e / group_size) & 1) == 0) return 0u;
    return OrderOf(ScoreOf(args, logits, e));
  };
  // Of the lane's experts, which are 32 apart: the first ones' orders, all
  // asked for at once, and a bit for each of the others that is taken.
  uint32_t held[kHeld];
  BATON_UNROLL
  for (int k = 0; k < kHeld; ++k) {
    const int32_t e = 32 * k + lane;
    held[k] = e < args.experts ? order_of(e) : 0;
  }
  uint32_t taken = 0;
  float max = 0.0f;
  float sum = 0.0f;  // of those chosen
  ExpertChoice own;
  for (int32_t i = 0; i < args.per_token; ++i) {
    uint32_t best = 0;  // no float's
    int32_t expert = 0;
    BATON_UNROLL
    for (int k = 0; k < kHeld; ++k) {
      if (held[k] <= best) continue;
      best = held[k];
      expert = 32 * k + lane;
    }
    for (int32_t k = kHeld; 32 * k + lane < args.experts; ++k) {
      const uint32_t order = order_of(32 * k + lane);
      if ((taken >> k & 1) != 0 || order <= best) continue;
      best = order;
      expert = 32 * k + lane;
    }
    TakeBest(best, expert);
    if (expert % 32 == lane) {
      taken |= 1u << (expert / 32);
      BATON_UNROLL
      for (int k = 0; k < kHeld; ++k) {
        if (k == expert / 32) held[k] = 0;
      }
    }
    float weight;
    if (args.sigmoid) {
      weight = SigmoidOf(logits[expert]);
    } else {
      const float logit = FloatOfOrder(best);
      if (i == 0) max = logit;
      weight = ExpOf(SubRn(logit, max));
    }
    sum = AddRn(sum, weight);
    if (i == lane) {
      own.expert = expert;
      own.share = weight;
    }
  }
  if (args.sigmoid) {
    // As the CPU backend does it.
    sum = args.normalized ? AddRn(sum, 1e-20f) : 1.0f;
  } else if (!args.normalized) {
    sum = 0.0f;
    for (int32_t e = lane; e < args.experts; e += 32) {
      sum = AddRn(sum, ExpOf(SubRn(logits[e], max)));
    }
    sum = SumOfWarp(sum);
  }
  if (lane >= passed) return;
  if (lane < args.per_token) {
    own.share = MulRn(DivRn(own.share, sum), args.scale);
  } else {
    own.expert = args.experts + lane - args.per_token;
    own.share = 1.0f;
  }
  choices[lane] = own;
}

BATON_KERNEL(kChooseThreads)
Choose(RouteArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const int32_t row = BlockX() * (kChooseThreads / 32) + Thread() / 32;
  if (row < args.rows) ChooseRow(args, row);
}

// The block's memory, an entry per expert each; of the first, per warp too, and
// of the last, one more: how many tiles there are.
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
  return (int64_t{kRouteWarps + 3} * experts + 1) * int64_t{sizeof(int32_t)};
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

// By a warp: where each expert's places and tiles begin. A lane has neighbours.
BATON_DEVICE void PlaceExperts(const RouteArgs& args,
                               const SortShared& shared) {
  const int32_t lane = Thread() % 32;
  const int32_t tile_rows = args.tiling.tile_rows;
  const int32_t experts = AllExperts(args);
  const int32_t each = (experts + 31) / 32;
  const int32_t begin = lane * each;
  const int32_t end = begin + each < experts ? begin + each : experts;
  int32_t rows = 0;
  int32_t tiles = 0;
  int32_t reads = 0;
  for (int32_t e = begin; e < end; ++e) {
    rows += shared.totals[e];
    tiles += (shared.totals[e] + tile_rows - 1) / tile_rows;
    reads += shared.totals[e] > 0 ? 1 : 0;
  }
  // Of this lane and those before, and in the end of those before.
  int32_t rows_to = rows;
  int32_t tiles_to = tiles;
  BATON_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const int32_t more_rows = ShuffleUp(rows_to, step);
    const int32_t more_tiles = ShuffleUp(tiles_to, step);
    if (lane >= step) {
      rows_to += more_rows;
      tiles_to += more_tiles;
    }
  }
  if (lane == 31) shared.tiles[experts] = tiles_to;
  rows_to -= rows;
  tiles_to -= tiles;
  for (int32_t e = begin; e < end; ++e) {
    shared.tiles[e] = tiles_to;
    shared.places[e] = args.tiling.staged ? tiles_to * tile_rows : rows_to;
    rows_to += shared.totals[e];
    tiles_to += (shared.totals[e] + tile_rows - 1) / tile_rows;
  }
  BATON_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) reads += ShuffleXor(reads, mask);
  if (lane == 0) {
    *args.reads =
        (args.first ? 0u : *args.reads) + static_cast<uint32_t>(reads);
  }
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
  const int32_t experts = AllExperts(args);
  const SortShared shared(experts);
  for (int32_t i = Thread(); i < kRouteWarps * experts; i += Threads()) {
    shared.counts[i] = 0;
  }
  SyncBlock();
  const int32_t passed = PassedExperts(args);
  const int32_t choices = args.rows * passed;
  const int32_t share =
      (choices + kRouteWarps * 32 - 1) / (kRouteWarps * 32) * 32;
  const int32_t begin = warp * share;
  const int32_t end = begin + share < choices ? begin + share : choices;
  CountChoices(args, begin, end, shared.counts + warp * experts);
  SyncBlock();
  for (int32_t e = Thread(); e < experts; e += Threads()) {
    int32_t counts[kRouteWarps];
    BATON_UNROLL
    for (int w = 0; w < kRouteWarps; ++w) {
      counts[w] = shared.counts[w * experts + e];
    }
    int32_t total = 0;
    BATON_UNROLL
    for (int w = 0; w < kRouteWarps; ++w) {
      shared.counts[w * experts + e] = total;
      total += counts[w];
    }
    shared.totals[e] = total;
  }
  SyncBlock();
  if (warp == 0) PlaceExperts(args, shared);
  SyncBlock();
  for (int32_t t = shared.tiles[experts] + Thread(); t < args.tiling.num_tiles;
       t += Threads()) {
    args.tiles[t] = {0, 0, 0};
  }
  for (int32_t e = Thread(); e < experts; e += Threads()) {
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
                          shared.counts[i / share * experts + expert] +
                          args.choices[i].place;
    args.choices[i].place = place;
    args.place_rows[place] = i / passed;
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
  for (int32_t some = 0; some < args.per_token; some += kMixedTogether) {
    ExpertChoice chosen[kMixedTogether];
    BATON_UNROLL
    for (int k = 0; k < kMixedTogether; ++k) {
      chosen[k].expert = -1;
      if (some + k < args.per_token) chosen[k] = choices[some + k];
    }
    float said[kMixedTogether][kMixed] = {};
    BATON_UNROLL
    for (int k = 0; k < kMixedTogether; ++k) {
      if (chosen[k].expert < 0) continue;
      const float* const from =
          args.said + int64_t{chosen[k].place} * args.size;
      BATON_UNROLL
      for (int j = 0; j < kMixed; ++j) {
        const int32_t i = first + j * kStep;
        if (i < args.size) said[k][j] = from[i];
      }
    }
    BATON_UNROLL
    for (int k = 0; k < kMixedTogether; ++k) {
      if (chosen[k].expert < 0) continue;
      BATON_UNROLL
      for (int j = 0; j < kMixed; ++j) {
        sum[j] = AddRn(sum[j], MulRn(chosen[k].share, said[k][j]));
      }
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
  CHECK_LE(args.experts + args.shared, kMostExperts);
  CHECK_LE(args.per_token + args.shared, kMostExpertsPerToken);
  CHECK_LE(args.per_token, args.experts);
  CHECK_LE(args.groups, kMostExpertGroups);
  CHECK_EQ(args.experts % args.groups, 0);
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
  shape.shared_bytes = SortSharedBytes(args.experts + args.shared);
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
