// The kernel of sample.h.
#include "engine/cuda/sample.h"

#include "device_target.h"
#include "engine/cuda/sample.cuh"

namespace baton::engine::cuda {
namespace {

// Copies the logits and edits the copy.
BATON_DEVICE void EditLogits(const SampleArgs& args, const SampleRow& how,
                             const float* logits, float* edited) {
  ForEachLogit(logits, args.vocab_size,
               [&](int32_t i, float logit) { edited[i] = logit; });
  SyncBlock();
  const LogitEdit* edits = args.edits + how.first_edit;
  for (int32_t i = Thread(); i < how.biases; i += kSampleThreads) {
    edited[edits[i].token] = AddRn(edited[edits[i].token], edits[i].value);
  }
  SyncBlock();
  edits += how.biases;
  for (int32_t i = Thread(); i < how.penalties; i += kSampleThreads) {
    float logit = edited[edits[i].token];
    logit = logit > 0.0f ? DivRn(logit, how.repetition_penalty)
                         : MulRn(logit, how.repetition_penalty);
    const float count = edits[i].value;
    if (count > 0.0f) {
      logit = SubRn(logit, AddRn(how.presence_penalty,
                                 MulRn(how.frequency_penalty, count)));
    }
    logit = logit < -kLogitLimit ? -kLogitLimit : logit;
    logit = logit > kLogitLimit ? kLogitLimit : logit;
    edited[edits[i].token] = logit;
  }
  SyncBlock();
  edits += how.penalties;
  for (int32_t i = Thread(); i < how.forbidden; i += kSampleThreads) {
    edited[edits[i].token] = kNoLogit;
  }
  if (how.mask != kNoMask) {
    const uint32_t* const mask = args.masks + how.mask;
    ForEachToken(
        args.vocab_size, [&](int32_t i) { return mask[i / 32]; },
        [&](int32_t i, uint32_t word) {
          if ((word >> (i % 32) & 1u) == 0) edited[i] = kNoLogit;
        });
  }
  SyncBlock();
}

// How many of `count` ranked weights reach `wanted`; more than `count` when
// they do not. For one thread.
BATON_DEVICE int32_t CountToWeight(const float* weights, int32_t count,
                                   double wanted) {
  double sum = 0.0;
  int32_t kept = 0;
  while (sum < wanted) {
    if (kept == count) return count + 1;
    sum = AddRn(sum, static_cast<double>(weights[kept++]));
  }
  return kept;
}

BATON_DEVICE double WeightOf(const float* weights, int32_t count) {
  double sum = 0.0;
  for (int32_t i = 0; i < count; ++i) {
    sum = AddRn(sum, static_cast<double>(weights[i]));
  }
  return sum;
}

// How many of the ranked candidates top-k and top-p keep; -1 when that cannot
// be told from them. For one thread; `total` is of all tokens.
BATON_DEVICE int32_t CountKept(const SampleRow& how, const float* weights,
                               const Ranked& ranked, int32_t size,
                               double total) {
  const int32_t count = ranked.count;
  const double top_p = how.top_p;
  if (how.top_k > 0 && how.top_k < size) {
    if (how.top_k > count && !ranked.all) return -1;
    const int32_t most = how.top_k < count ? how.top_k : count;
    if (how.top_p >= 1.0f) return most;
    const int32_t kept =
        CountToWeight(weights, most, MulRn(top_p, WeightOf(weights, most)));
    return kept > most ? most : kept;
  }
  if (how.top_p < 1.0f) {
    const int32_t kept = CountToWeight(weights, count, MulRn(top_p, total));
    if (kept <= count) return kept;
    return ranked.all ? count : -1;
  }
  // min-p alone: the last candidate must be well below what it asks for, as
  // weights follow logits only within their rounding.
  if (ranked.all || weights[count - 1] < MulRn(how.min_p, 0.999f)) {
    return count;
  }
  return -1;
}

// Draws from what top-k, top-p and min-p leave; -1 when that cannot be told.
// `total` is the row's TotalWeight. For all threads.
BATON_DEVICE TokenId DrawFromKept(const RowDistribution& row,
                                  const SampleRow& how, double total) {
  SampleShared& shared = Shared();
  const Ranked ranked = FirstRanked(row);
  if (Thread() == 0) {
    shared.chunk = ranked.count == 0 ? -1
                                     : CountKept(how, shared.weights, ranked,
                                                 row.size, total);
  }
  SyncBlock();
  const int32_t kept = shared.chunk;
  SyncBlock();
  if (kept < 0) return -1;

  // In the order of engine/sampling.cc: with top-k, by rank; with top-p alone,
  // by id but for the last bin, which is ranked; else by id. What min-p drops
  // goes to the end.
  const bool top_k = how.top_k > 0 && how.top_k < row.size;
  const bool top_p = how.top_p < 1.0f;
  const int32_t last_bin = row.Bin(shared.logits[kept - 1]);
  const uint64_t i = static_cast<uint64_t>(Thread());
  uint64_t key = ~uint64_t{0};
  if (Thread() < kept && !(shared.weights[Thread()] < how.min_p)) {
    const bool by_rank =
        top_k || (top_p && row.Bin(shared.logits[Thread()]) >= last_bin);
    const uint64_t order =
        by_rank ? i : static_cast<uint64_t>(shared.tokens[Thread()]);
    key = uint64_t{by_rank} << 62 | order << 10 | i;
  }
  shared.keys[Thread()] = key;
  SortKeys(shared.keys);
  if (Thread() == 0) {
    const uint64_t* const keys = shared.keys;
    constexpr uint64_t kNone = ~uint64_t{0};
    int32_t left = 0;
    double sum = 0.0;
    while (left < kCandidates && keys[left] != kNone) {
      sum =
          AddRn(sum, static_cast<double>(shared.weights[keys[left++] & 1023u]));
    }
    const double target = MulRn(how.uniform, sum);
    // Only rounding leads to the first.
    int32_t drawn = static_cast<int32_t>(keys[0] & 1023u);
    sum = 0.0;
    for (int32_t at = 0; at < left; ++at) {
      const auto candidate = static_cast<int32_t>(keys[at] & 1023u);
      sum = AddRn(sum, static_cast<double>(shared.weights[candidate]));
      if (sum > target) {
        drawn = candidate;
        break;
      }
    }
    shared.chunk = shared.tokens[drawn];
  }
  SyncBlock();
  const TokenId token = shared.chunk;
  SyncBlock();
  return token;
}

// Puts the likeliest tokens of the row, at most `wanted`, into `tops`; how many
// are there, 0 when that cannot be told. For all threads.
BATON_DEVICE int32_t PutTop(const RowDistribution& row, int32_t wanted,
                            TopLogit* tops) {
  const SampleShared& shared = Shared();
  const Ranked ranked = FirstRanked(row);
  const int32_t count = wanted < row.size ? wanted : row.size;
  if (ranked.count < count) return 0;
  if (Thread() < count) {
    tops[Thread()] = {shared.tokens[Thread()], shared.logits[Thread()]};
  }
  SyncBlock();
  return count;
}

BATON_KERNEL(kSampleThreads)
Sample(SampleArgs args) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  const SampleRow how = args.how[BlockX()];
  const float* const logits = args.logits + BlockX() * args.stride;
  float* const edited = args.edited + BlockX() * args.stride;
  const int32_t size = args.vocab_size;
  SampleOutcome outcome;
  const LogitRange range = RangeOf(logits, size);
  outcome.finite = range.finite ? 1 : 0;
  if (outcome.finite == 0) {
    if (Thread() == 0) args.outcomes[BlockX()] = outcome;
    return;
  }
  outcome.max = range.max;
  outcome.total = TotalWeight({logits, size, outcome.max, 1.0f});
  if (how.top > 0) {
    outcome.top = PutTop({logits, size, outcome.max, 1.0f}, how.top,
                         args.tops + BlockX() * kTopPlaces);
    if (outcome.top == 0) {
      outcome.undecided = 1;
      if (Thread() == 0) args.outcomes[BlockX()] = outcome;
      return;
    }
  }
  if (how.statistics_only == 0) {
    const bool edits =
        how.biases + how.penalties + how.forbidden > 0 || how.mask != kNoMask;
    if (edits) EditLogits(args, how, logits, edited);
    const float* const drawn = edits ? edited : logits;
    const float max = edits ? RangeOf(edited, size).max : range.max;
    const RowDistribution row = {drawn, size, max, how.temperature};
    const bool truncates = (how.top_k > 0 && how.top_k < size) ||
                           how.top_p < 1.0f || how.min_p > 0.0f;
    if (how.temperature == 0.0f) {
      outcome.token = FirstOf(drawn, size, max);
    } else {
      // Often it is the model's own distribution.
      const double total =
          edits || how.temperature != 1.0f ? TotalWeight(row) : outcome.total;
      outcome.token = truncates ? DrawFromKept(row, how, total)
                                : DrawFromAll(row, how.uniform, total);
    }
    outcome.undecided = outcome.token < 0 ? 1 : 0;
    if (outcome.token >= 0) outcome.own_logit = logits[outcome.token];
  }
  if (Thread() == 0) args.outcomes[BlockX()] = outcome;
}

BATON_KERNEL(128)
Follow(FollowArgs args) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  const int32_t row = BlockX() * Threads() + Thread();
  if (row >= args.count) return;
  const TokenId token = args.outcomes[args.from[row]].token;
  args.tokens[row] = token < 0 ? 0 : token;
}

BATON_KERNEL(128)
Pick(PickArgs args) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  const int32_t row = BlockX() * Threads() + Thread();
  if (row >= args.rows) return;
  args.values[row] = args.logits[row * args.stride + args.tokens[row]];
}

}  // namespace

LaunchShape SampleShape(const SampleArgs& args) {
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(args.rows);
  shape.threads = kSampleThreads;
  const int64_t chunks = (args.vocab_size + kWeightChunk - 1) / kWeightChunk;
  shape.shared_bytes = static_cast<int64_t>(sizeof(SampleShared)) + chunks * 8;
  return shape;
}

void RunSample(const SampleArgs& args, StreamHandle* stream) {
  Launch(Sample, "sample", SampleShape(args), stream, args);
}

void RunFollow(const FollowArgs& args, StreamHandle* stream) {
  LaunchShape shape;
  shape.threads = 128;
  shape.x = (static_cast<uint32_t>(args.count) + 127) / 128;
  Launch(Follow, "follow", shape, stream, args);
}

void RunPick(const PickArgs& args, StreamHandle* stream) {
  LaunchShape shape;
  shape.threads = 128;
  shape.x = (static_cast<uint32_t>(args.rows) + 127) / 128;
  Launch(Pick, "pick", shape, stream, args);
}

}  // namespace baton::engine::cuda
