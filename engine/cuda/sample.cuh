// The parts of the kernel of sample.h. A block of 1,024 threads has one row.
#pragma once

#include <limits>

#include "device_target.h"
#include "engine/cuda/sample.h"

namespace baton::engine::cuda {

inline constexpr int32_t kSampleThreads = 1024;
inline constexpr float kNoLogit = -std::numeric_limits<float>::infinity();
// What a penalty may make of a logit: it must not make infinities.
inline constexpr float kLogitLimit = std::numeric_limits<float>::max() / 4;
// As in engine/sampling.cc.
inline constexpr int32_t kWeightChunk = 512;
inline constexpr int32_t kDepthBins = 256;

// The block's memory.
struct SampleShared {
  uint64_t keys[kCandidates];
  float weights[kCandidates];  // also: of the tokens of one chunk
  TokenId tokens[kCandidates];
  float logits[kCandidates];
  uint32_t counts[256];
  float warp_values[32];
  float max;
  double total;
  uint32_t flag;
  uint32_t count;
  uint32_t threshold;
  int32_t chunk;
  double target;
  // Followed by a double per chunk of the vocabulary.
};

BATON_DEVICE SampleShared& Shared() {
  return *reinterpret_cast<SampleShared*>(SharedMemory());
}
BATON_DEVICE double* ChunkWeights() {
  return reinterpret_cast<double*>(SharedMemory() + sizeof(SampleShared));
}

// exp(x) exactly as engine/vector_math.inl computes it for engine/sampling.cc:
// the same operations, each rounded once.
BATON_DEVICE float SampleExp(float x) {
  const float n =
      SubRn(AddRn(MulRn(x, 1.44269504088896341f), 12582912.0f), 12582912.0f);
  float r = AddRn(MulRn(n, -0.693359375f), x);
  r = AddRn(MulRn(n, 2.12194440e-4f), r);
  float p = 1.9875691500e-4f;
  p = AddRn(MulRn(p, r), 1.3981999507e-3f);
  p = AddRn(MulRn(p, r), 8.3334519073e-3f);
  p = AddRn(MulRn(p, r), 4.1665795894e-2f);
  p = AddRn(MulRn(p, r), 1.6666665459e-1f);
  p = AddRn(MulRn(p, r), 5.0000001201e-1f);
  const float y = AddRn(AddRn(MulRn(MulRn(p, r), r), r), 1.0f);
  if (x < -87.3f) return 0.0f;
  if (x > 88.0f) return -kNoLogit;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) * (1 << 23);
  return MulRn(y, BitsFloat(static_cast<uint32_t>(exponent)));
}

struct RowDistribution {
  const float* logits;
  int32_t size;
  float max;
  float temperature;

  // x / temperature; with 1 that is x.
  BATON_DEVICE float Scaled(float x) const {
    return temperature == 1.0f ? x : DivRn(x, temperature);
  }
  BATON_DEVICE float Weight(float logit) const {
    return SampleExp(Scaled(SubRn(logit, max)));
  }
  // The bin of engine/sampling.cc's ForEachBinned.
  BATON_DEVICE int32_t Bin(float logit) const {
    const float depth = MulRn(Scaled(SubRn(max, logit)), 8.0f);
    return depth < kDepthBins - 1.0f ? static_cast<int32_t>(depth)
                                     : kDepthBins - 1;
  }
};

BATON_DEVICE float MaxOf(float a, float b) { return a > b ? a : b; }

// Calls f(i, load(i)) for the thread's tokens, in rising order: of each eight
// all are asked for before any is used, as there is one block for a row and
// what takes time is the memory's latency.
template <typename Load, typename F>
BATON_DEVICE void ForEachToken(int32_t size, const Load& load, const F& f) {
  constexpr int kTogether = 8;
  int32_t i = Thread();
  for (; i + (kTogether - 1) * kSampleThreads < size;
       i += kTogether * kSampleThreads) {
    decltype(load(i)) some[kTogether];
    BATON_UNROLL
    for (int k = 0; k < kTogether; ++k) some[k] = load(i + k * kSampleThreads);
    BATON_UNROLL
    for (int k = 0; k < kTogether; ++k) f(i + k * kSampleThreads, some[k]);
  }
  for (; i < size; i += kSampleThreads) f(i, load(i));
}

// Calls f(i, logits[i]) so.
template <typename F>
BATON_DEVICE void ForEachLogit(const float* logits, int32_t size, const F& f) {
  ForEachToken(
      size, [&](int32_t i) { return logits[i]; }, f);
}

// The greatest logit of the row, for all threads, and whether all are finite.
struct LogitRange {
  float max;
  bool finite;
};
BATON_DEVICE LogitRange RangeOf(const float* logits, int32_t size) {
  SampleShared& shared = Shared();
  constexpr uint32_t kExponent = 0x7f800000u;
  float max = kNoLogit;
  uint32_t bad = 0;
  ForEachLogit(logits, size, [&](int32_t, float logit) {
    max = MaxOf(logit, max);
    bad |= (FloatBits(logit) & kExponent) == kExponent ? 1u : 0u;
  });
  if (Thread() == 0) shared.flag = 0;
  SyncBlock();
  if (bad != 0) AtomicMax(&shared.flag, 1u);
  for (int mask = 16; mask > 0; mask /= 2) {
    max = MaxOf(ShuffleXor(max, mask), max);
  }
  if (Thread() % 32 == 0) shared.warp_values[Thread() / 32] = max;
  SyncBlock();
  if (Thread() == 0) {
    for (int32_t i = 1; i < kSampleThreads / 32; ++i) {
      max = MaxOf(shared.warp_values[i], max);
    }
    shared.max = max;
  }
  SyncBlock();
  const LogitRange range = {shared.max, shared.flag == 0};
  SyncBlock();  // before anyone writes it again
  return range;
}

// The weight of each chunk of the vocabulary, as ChunkWeight of
// engine/sampling.cc: four sums in float, joined and widened. Returns the sum
// of the chunks in their order, for all threads.
BATON_DEVICE double TotalWeight(const RowDistribution& row) {
  SampleShared& shared = Shared();
  double* const chunk_weights = ChunkWeights();
  const int32_t chunks = (row.size + kWeightChunk - 1) / kWeightChunk;
  // Four threads a chunk. Whole warps go round together, for the shuffles.
  for (int32_t item = Thread(); item / 32 * 32 < 4 * chunks;
       item += kSampleThreads) {
    const int32_t chunk = item / 4;
    const int32_t begin = chunk * kWeightChunk;
    const int32_t chunk_end = begin + kWeightChunk;
    const int32_t end = chunk_end < row.size ? chunk_end : row.size;
    float sum = 0.0f;
    for (int32_t i = begin + item % 4; i < end; i += 4) {
      sum = AddRn(sum, row.Weight(row.logits[i]));
    }
    sum = AddRn(sum, ShuffleXor(sum, 2));
    sum = AddRn(sum, ShuffleXor(sum, 1));
    if (item % 4 == 0 && chunk < chunks) {
      chunk_weights[chunk] = static_cast<double>(sum);
    }
  }
  SyncBlock();
  if (Thread() == 0) {
    double total = 0.0;
    for (int32_t i = 0; i < chunks; ++i) total = AddRn(total, chunk_weights[i]);
    shared.total = total;
  }
  SyncBlock();
  const double total = shared.total;
  SyncBlock();
  return total;
}

// The first token with this logit, for all threads.
BATON_DEVICE TokenId FirstOf(const float* logits, int32_t size, float value) {
  SampleShared& shared = Shared();
  if (Thread() == 0) shared.threshold = 0xffffffffu;
  SyncBlock();
  uint32_t first = 0xffffffffu;
  ForEachLogit(logits, size, [&](int32_t i, float logit) {
    if (logit != value) return;
    const auto here = static_cast<uint32_t>(i);
    first = here < first ? here : first;
  });
  if (first != 0xffffffffu) AtomicMin(&shared.threshold, first);
  SyncBlock();
  const auto token = static_cast<TokenId>(shared.threshold);
  SyncBlock();
  return token;
}

// One draw from the whole distribution, of which `total` is what TotalWeight
// gave last.
BATON_DEVICE TokenId DrawFromAll(const RowDistribution& row, double uniform,
                                 double total) {
  SampleShared& shared = Shared();
  double* const chunk_weights = ChunkWeights();
  const int32_t chunks = (row.size + kWeightChunk - 1) / kWeightChunk;
  if (Thread() == 0) {
    double target = MulRn(uniform, total);
    int32_t chunk = 0;
    while (chunk + 1 < chunks && target >= chunk_weights[chunk]) {
      target = AddRn(target, -chunk_weights[chunk]);
      ++chunk;
    }
    shared.chunk = chunk;
    shared.target = target;
    shared.flag = 0;
  }
  SyncBlock();
  const int32_t begin = shared.chunk * kWeightChunk;
  const int32_t left = row.size - begin;
  const int32_t count = left < kWeightChunk ? left : kWeightChunk;
  if (Thread() < count) {
    shared.weights[Thread()] = row.Weight(row.logits[begin + Thread()]);
  }
  SyncBlock();
  if (Thread() == 0) {
    double sum = 0.0;
    for (int32_t i = 0; i < count; ++i) {
      sum = AddRn(sum, static_cast<double>(shared.weights[i]));
      if (sum > shared.target) {
        shared.flag = 1;
        shared.tokens[0] = begin + i;
        break;
      }
    }
  }
  SyncBlock();
  const bool found = shared.flag != 0;
  const TokenId token = shared.tokens[0];
  SyncBlock();
  // Only rounding leads to the likeliest.
  return found ? token : FirstOf(row.logits, row.size, row.max);
}

// Greater for greater logits; equal for both zeros.
BATON_DEVICE uint32_t LogitRank(float logit) {
  const uint32_t bits = FloatBits(AddRn(logit, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Sorts the keys, rising.
BATON_DEVICE void SortKeys(uint64_t* keys) {
  static_assert(kCandidates == kSampleThreads);
  const int32_t i = Thread();
  for (int32_t run = 2; run <= kCandidates; run *= 2) {
    for (int32_t step = run / 2; step > 0; step /= 2) {
      SyncBlock();
      const int32_t other = i ^ step;
      if (other > i) {
        const uint64_t a = keys[i];
        const uint64_t b = keys[other];
        const bool rising = (i & run) == 0;
        if ((a > b) == rising) {
          keys[i] = b;
          keys[other] = a;
        }
      }
    }
  }
  SyncBlock();
}

// The first-ranked tokens of those that may come out, at most kCandidates: they
// are in shared.tokens, shared.logits and shared.weights, ranked.
struct Ranked {
  int32_t count;
  bool all;  // Whether there are no others.
};

// Finds them, for all threads: all that have at least some logit. Counts of
// ranks, eight bits at a time from the top, narrow the least logit down.
BATON_DEVICE Ranked FirstRanked(const RowDistribution& row) {
  SampleShared& shared = Shared();
  uint32_t prefix = 0;  // the bits of the least rank so far
  int32_t above = 0;    // tokens whose rank is above all with this prefix
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int32_t i = Thread(); i < 256; i += kSampleThreads) {
      shared.counts[i] = 0;
    }
    SyncBlock();
    ForEachLogit(row.logits, row.size, [&](int32_t, float logit) {
      // Of these there may be so many that nothing but counting them is done.
      if (logit == kNoLogit) return;
      const uint32_t rank = LogitRank(logit);
      // Shifting by all 32 bits means nothing to a CPU.
      if (shift < 24 && rank >> (shift + 8) != prefix >> (shift + 8)) return;
      AtomicAdd(&shared.counts[rank >> shift & 255u], 1);
    });
    SyncBlock();
    if (Thread() == 0) {
      uint32_t sum = static_cast<uint32_t>(above);
      int32_t bin = 255;
      // Down to the bin where the candidates would become too many.
      while (bin > 0 && sum + shared.counts[bin] <= kCandidates) {
        sum += shared.counts[bin--];
      }
      shared.count = sum;
      shared.threshold = prefix | static_cast<uint32_t>(bin) << shift;
    }
    SyncBlock();
    above = static_cast<int32_t>(shared.count);
    prefix = shared.threshold;
    SyncBlock();
  }
  // Ranks above `prefix` are at most kCandidates; with those that equal it they
  // may be more.
  if (Thread() == 0) shared.count = 0;
  SyncBlock();
  const uint32_t equal = shared.counts[prefix & 255u];
  const bool with_equal = above + equal <= kCandidates;
  shared.keys[Thread()] = ~uint64_t{0};
  SyncBlock();
  ForEachLogit(row.logits, row.size, [&](int32_t i, float logit) {
    const uint32_t rank = LogitRank(logit);
    if (logit == kNoLogit || rank < prefix || (rank == prefix && !with_equal)) {
      return;
    }
    const uint32_t place = AtomicNext(&shared.count);
    shared.keys[place] = uint64_t{~rank} << 32 | static_cast<uint32_t>(i);
  });
  SyncBlock();
  const int32_t count = static_cast<int32_t>(shared.count);
  SortKeys(shared.keys);
  if (Thread() < count) {
    const auto token =
        static_cast<TokenId>(shared.keys[Thread()] & 0xffffffffu);
    shared.tokens[Thread()] = token;
    shared.logits[Thread()] = row.logits[token];
    shared.weights[Thread()] = row.Weight(row.logits[token]);
  }
  SyncBlock();
  // Finite logits have greater ranks.
  return {count, prefix <= LogitRank(kNoLogit)};
}

}  // namespace baton::engine::cuda
