#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/log.h"
#include "engine/philox.h"

// Vectors of four floats in plain C++, the same on every CPU.
namespace baton::engine {
namespace {

constexpr int32_t kLanes = 4;
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(8)));

inline Floats Set(float x) { return Floats{x, x, x, x}; }
inline Floats Fma(Floats a, Floats b, Floats c) { return a * b + c; }
inline float SumLanes(Floats v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline float MaxLanes(Floats v) {
  const float a = v[0] > v[2] ? v[0] : v[2];
  const float b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}

}  // namespace
}  // namespace baton::engine

#include "engine/vector_math.inl"

namespace baton::engine {
namespace {

using scheduling::LogitBias;
using scheduling::SampledToken;
using scheduling::SamplingParams;
using scheduling::TokenLogprob;

// Logits whose weights are summed in float before they enter a double.
constexpr size_t kChunk = 512;

// The next kLanes logits from `i`, -infinity beyond the end.
inline Floats LoadLogits(absl::Span<const float> logits, size_t i) {
  if (i + kLanes <= logits.size()) return Load<Floats>(logits.data() + i);
  Floats v = Set(-std::numeric_limits<float>::infinity());
  __builtin_memcpy(&v, logits.data() + i, (logits.size() - i) * sizeof(float));
  return v;
}

bool AllFinite(absl::Span<const float> logits) {
  constexpr uint32_t kExponent = 0x7f800000u;
  Ints bad = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    bad |= (Bits(Load<Floats>(logits.data() + i)) & kExponent) == kExponent;
  }
  bool finite = true;
  for (int32_t lane = 0; lane < kLanes; ++lane) finite &= bad[lane] == 0;
  for (; i < logits.size(); ++i) finite &= std::isfinite(logits[i]);
  return finite;
}

float MaxLogit(absl::Span<const float> logits) {
  Floats max = LoadLogits(logits, 0);
  for (size_t i = kLanes; i < logits.size(); i += kLanes) {
    max = Max(LoadLogits(logits, i), max);
  }
  return MaxLanes(max);
}

// The unnormalized distribution exp((logit - max) / temperature): the most
// likely token has weight 1.
struct Distribution {
  absl::Span<const float> logits;
  float max = 0.0f;
  float temperature = 1.0f;

  Floats Weights(Floats some_logits) const {
    return Exp((some_logits - Set(max)) / Set(temperature));
  }
  float Weight(float logit) const { return Weights(Set(logit))[0]; }

  // The sum of the weights of the chunk that starts at `begin`.
  double ChunkWeight(size_t begin) const {
    const size_t end = std::min(begin + kChunk, logits.size());
    Floats sum = Set(0.0f);
    for (size_t i = begin; i < end; i += kLanes) {
      sum += Weights(LoadLogits(logits, i));
    }
    return SumLanes(sum);
  }

  double TotalWeight() const {
    double total = 0.0;
    for (size_t i = 0; i < logits.size(); i += kChunk) total += ChunkWeight(i);
    return total;
  }
};

struct Candidate {
  float logit;
  float weight;
  TokenId token;
};

// Whether `a` ranks before `b`.
bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

void CheckToken(TokenId token, absl::Span<const float> logits) {
  CHECK(token >= 0 && static_cast<size_t>(token) < logits.size()) << token;
}

// Returns what the logits were, in the order of the biases.
std::vector<float> AddBias(absl::Span<float> logits,
                           absl::Span<const LogitBias> biases) {
  std::vector<float> before;
  before.reserve(biases.size());
  for (const LogitBias& b : biases) {
    CheckToken(b.token, logits);
    before.push_back(logits[b.token]);
    // The largest float stays finite.
    logits[b.token] += b.bias;
  }
  return before;
}

// What a penalty changed.
struct Seen {
  float logit_before = 0.0f;
  int32_t output_count = 0;
};
using SeenTokens = absl::flat_hash_map<TokenId, Seen>;

SeenTokens ApplyPenalties(absl::Span<float> logits,
                          const SamplingParams& params,
                          absl::Span<const TokenId> history,
                          int32_t prompt_length) {
  SeenTokens seen;
  const bool repetition = params.repetition_penalty != 1.0f;
  if (!repetition && params.presence_penalty == 0.0f &&
      params.frequency_penalty == 0.0f) {
    return seen;
  }
  for (size_t i = 0; i < history.size(); ++i) {
    const bool output = i >= static_cast<size_t>(prompt_length);
    if (!output && !repetition) continue;
    CheckToken(history[i], logits);
    Seen& entry = seen[history[i]];
    entry.logit_before = logits[history[i]];
    if (output) ++entry.output_count;
  }
  for (const auto& [token, entry] : seen) {
    float logit = entry.logit_before;
    if (logit > 0.0f) {
      logit /= params.repetition_penalty;
    } else {
      logit *= params.repetition_penalty;
    }
    if (entry.output_count > 0) {
      logit -=
          params.presence_penalty +
          params.frequency_penalty * static_cast<float>(entry.output_count);
    }
    // An extreme penalty must not make infinities.
    constexpr float kLimit = std::numeric_limits<float>::max() / 4;
    logits[token] = std::clamp(logit, -kLimit, kLimit);
  }
  return seen;
}

void Forbid(absl::Span<float> logits, absl::Span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    CheckToken(token, logits);
    logits[token] = -std::numeric_limits<float>::infinity();
  }
}

void ForbidOthers(absl::Span<float> logits,
                  const scheduling::TokenMask& allowed) {
  CHECK_EQ(static_cast<size_t>(allowed.vocab_size()), logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!allowed.Has(static_cast<TokenId>(i))) {
      logits[i] = -std::numeric_limits<float>::infinity();
    }
  }
}

// The k first-ranked tokens, ranked; without weights.
std::vector<Candidate> FirstRanked(absl::Span<const float> logits, size_t k) {
  std::vector<Candidate> best;  // a heap, the last-ranked on top
  best.reserve(k);
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{logits[i], 0.0f, static_cast<TokenId>(i)};
    if (best.size() == k) {
      // Equal logits come in the order of rank.
      if (candidate.logit <= best.front().logit) continue;
      std::pop_heap(best.begin(), best.end(), Before);
      best.back() = candidate;
    } else {
      best.push_back(candidate);
    }
    std::push_heap(best.begin(), best.end(), Before);
  }
  std::sort_heap(best.begin(), best.end(), Before);
  return best;
}

// The k first-ranked tokens, ranked.
std::vector<Candidate> TopK(const Distribution& distribution, size_t k) {
  std::vector<Candidate> best = FirstRanked(distribution.logits, k);
  for (Candidate& c : best) c.weight = distribution.Weight(c.logit);
  return best;
}

double TotalWeight(absl::Span<const Candidate> candidates) {
  double total = 0.0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

// Cuts ranked candidates where their weight reaches `wanted`.
void CutAtWeight(double wanted, std::vector<Candidate>* ranked) {
  double sum = 0.0;
  size_t kept = 0;
  while (kept < ranked->size() && sum < wanted) {
    sum += (*ranked)[kept++].weight;
  }
  ranked->resize(kept);
}

// Calls visit(token, logit, weight, bin) for every token; the bin counts the
// distance from the highest logit in steps of 1/8 temperature, so that tokens
// of a lower bin rank before those of a higher one.
constexpr int32_t kBins = 256;
template <typename Visit>
void ForEachBinned(const Distribution& distribution, Visit visit) {
  const size_t size = distribution.logits.size();
  for (size_t i = 0; i < size; i += kLanes) {
    const Floats logits = LoadLogits(distribution.logits, i);
    const Floats depth = (Set(distribution.max) - logits) /
                         Set(distribution.temperature) * Set(8.0f);
    const Floats last = Set(kBins - 1.0f);
    const Ints bins =
        __builtin_convertvector(depth < last ? depth : last, Ints);
    const Floats weights = distribution.Weights(logits);
    for (size_t lane = 0; lane < kLanes && i + lane < size; ++lane) {
      visit(static_cast<TokenId>(i + lane), logits[lane], weights[lane],
            bins[lane]);
    }
  }
}

// The smallest set of first-ranked tokens whose weight reaches `top_p` of all.
// Only the bin where the set ends needs to be sorted.
std::vector<Candidate> TopP(const Distribution& distribution, float top_p) {
  double bin_weights[kBins] = {};
  ForEachBinned(distribution, [&](TokenId, float, float weight, int32_t bin) {
    bin_weights[bin] += weight;
  });
  double total = 0.0;
  for (const double weight : bin_weights) total += weight;
  const double wanted = top_p * total;
  int32_t last = 0;
  double before_last = 0.0;
  while (last < kBins - 1 && before_last + bin_weights[last] < wanted) {
    before_last += bin_weights[last++];
  }
  std::vector<Candidate> kept, rest;
  ForEachBinned(distribution,
                [&](TokenId token, float logit, float weight, int32_t bin) {
                  if (bin < last) kept.push_back({logit, weight, token});
                  if (bin == last) rest.push_back({logit, weight, token});
                });
  std::sort(rest.begin(), rest.end(), Before);
  CutAtWeight(wanted - before_last, &rest);
  kept.insert(kept.end(), rest.begin(), rest.end());
  return kept;
}

// All tokens with at least `min_weight`, by id.
std::vector<Candidate> AtLeast(const Distribution& distribution,
                               float min_weight) {
  std::vector<Candidate> kept;
  const size_t size = distribution.logits.size();
  for (size_t i = 0; i < size; i += kLanes) {
    const Floats logits = LoadLogits(distribution.logits, i);
    const Floats weights = distribution.Weights(logits);
    for (size_t lane = 0; lane < kLanes && i + lane < size; ++lane) {
      if (weights[lane] < min_weight) continue;
      kept.push_back(
          {logits[lane], weights[lane], static_cast<TokenId>(i + lane)});
    }
  }
  return kept;
}

// What top-k, top-p and min-p leave, in an order that depends on the logits
// alone; none when they are all off.
std::optional<std::vector<Candidate>> Truncate(const Distribution& distribution,
                                               const SamplingParams& params) {
  const bool top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) <
                                             distribution.logits.size();
  const bool top_p = params.top_p < 1.0f;
  // The most likely token has weight 1.
  const float min_weight = params.min_p;
  if (!top_k && !top_p) {
    if (min_weight <= 0.0f) return std::nullopt;
    return AtLeast(distribution, min_weight);
  }
  std::vector<Candidate> kept;
  if (top_k) {
    kept = TopK(distribution, params.top_k);
    if (top_p) CutAtWeight(params.top_p * TotalWeight(kept), &kept);
  } else {
    kept = TopP(distribution, params.top_p);
  }
  std::erase_if(kept,
                [&](const Candidate& c) { return c.weight < min_weight; });
  return kept;
}

TokenId DrawFrom(absl::Span<const Candidate> candidates, double uniform) {
  const double target = uniform * TotalWeight(candidates);
  double sum = 0.0;
  for (const Candidate& c : candidates) {
    sum += c.weight;
    if (sum > target) return c.token;
  }
  return candidates.front().token;  // only rounding leads here
}

TokenId FirstOf(absl::Span<const float> logits, float value) {
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), value) -
                              logits.begin());
}

TokenId DrawFromAll(const Distribution& distribution, double uniform) {
  const absl::Span<const float> logits = distribution.logits;
  std::vector<double> chunks;
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); i += kChunk) {
    chunks.push_back(distribution.ChunkWeight(i));
    total += chunks.back();
  }
  double target = uniform * total;
  size_t chunk = 0;
  while (chunk + 1 < chunks.size() && target >= chunks[chunk]) {
    target -= chunks[chunk++];
  }
  const size_t begin = chunk * kChunk;
  const size_t end = std::min(begin + kChunk, logits.size());
  double sum = 0.0;
  for (size_t i = begin; i < end; ++i) {
    sum += distribution.Weight(logits[i]);
    if (sum > target) return static_cast<TokenId>(i);
  }
  return FirstOf(logits, distribution.max);  // only rounding leads here
}

TokenId Choose(absl::Span<const float> logits, const SamplingParams& params,
               uint64_t token_index) {
  const float max = MaxLogit(logits);
  CHECK(std::isfinite(max)) << "every token is forbidden";
  if (params.temperature == 0.0f) return FirstOf(logits, max);
  const Distribution distribution{logits, max, params.temperature};
  const double uniform = UniformDraw(params.seed, token_index);
  const std::optional<std::vector<Candidate>> kept =
      Truncate(distribution, params);
  return kept ? DrawFrom(*kept, uniform) : DrawFromAll(distribution, uniform);
}

// The logarithm of the sum of exp(logit) of finite logits.
double LogTotal(absl::Span<const float> logits) {
  const Distribution raw{logits, MaxLogit(logits), /*temperature=*/1.0f};
  return raw.max + std::log(raw.TotalWeight());
}

float Logprob(float logit, double log_total) {
  return static_cast<float>(logit - log_total);
}

std::vector<TokenLogprob> TopLogprobs(absl::Span<const float> logits,
                                      double log_total, int32_t count) {
  CHECK_GE(count, 0);
  std::vector<TokenLogprob> top;
  if (count == 0) return top;
  const size_t k = std::min(static_cast<size_t>(count), logits.size());
  top.reserve(k);
  for (const Candidate& c : FirstRanked(logits, k)) {
    top.push_back({c.token, Logprob(c.logit, log_total)});
  }
  return top;
}

// The model's own logit of `token`, whatever was done to it since.
float OwnLogit(TokenId token, absl::Span<const float> logits,
               absl::Span<const LogitBias> biases,
               absl::Span<const float> before_bias, const SeenTokens& seen) {
  const auto bias = std::lower_bound(
      biases.begin(), biases.end(), token,
      [](const LogitBias& b, TokenId t) { return b.token < t; });
  if (bias != biases.end() && bias->token == token) {
    return before_bias[bias - biases.begin()];
  }
  const auto it = seen.find(token);
  return it == seen.end() ? logits[token] : it->second.logit_before;
}

}  // namespace

float LogProbability(absl::Span<const float> logits, TokenId token,
                     int32_t top_logprobs, std::vector<TokenLogprob>* top) {
  CheckToken(token, logits);
  if (!AllFinite(logits)) return std::numeric_limits<float>::quiet_NaN();
  const double log_total = LogTotal(logits);
  if (top != nullptr) *top = TopLogprobs(logits, log_total, top_logprobs);
  return Logprob(logits[token], log_total);
}

SampledToken Sample(absl::Span<float> logits, const SamplingParams& params,
                    absl::Span<const TokenId> history, int32_t prompt_length,
                    uint64_t token_index, const SampleOptions& options) {
  CHECK(!logits.empty());
  CHECK(prompt_length >= 0 &&
        static_cast<size_t>(prompt_length) <= history.size());
  SampledToken result;
  if (!AllFinite(logits)) {
    result.ok = false;
    return result;
  }
  const double log_total = LogTotal(logits);
  result.top = TopLogprobs(logits, log_total, options.top_logprobs);
  const std::vector<float> before_bias = AddBias(logits, params.logit_bias);
  const SeenTokens seen =
      ApplyPenalties(logits, params, history, prompt_length);
  Forbid(logits, options.forbidden);
  if (options.allowed != nullptr) ForbidOthers(logits, *options.allowed);
  result.token = Choose(logits, params, token_index);
  const float logit =
      OwnLogit(result.token, logits, params.logit_bias, before_bias, seen);
  result.logprob = Logprob(logit, log_total);
  return result;
}

}  // namespace baton::engine
