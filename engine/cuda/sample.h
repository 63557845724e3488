// From logits to tokens, on the device: what engine/sampling.h says, for the
// rows of a step at once. The draw itself (one Philox call, engine/philox.h) is
// made on the host and handed in, as nothing but the seed and the token's index
// decides it.
//
// The weights of tokens are those of engine/sampling.h to the bit, and so are
// sums wherever it adds them one after another. With top-p alone, the total
// that a nucleus is a share of is summed in another order than there: the cut
// can fall elsewhere when a partial sum hits the share to about 1e-15.
//
// What a row keeps after top-k, top-p and min-p must be among its kCandidates
// likeliest tokens. Where it may not be (top-k above that, a nucleus of a flat
// distribution), the row comes back as `undecided` and the host draws from its
// logits with engine/sampling.h: the same answer, later. So it does where so
// many are equally likely that the likeliest, which the row was asked for, are
// not all among these.
//
// These functions give kernels to a stream. Arrays are the device's.
#pragma once

#include <cstdint>

#include "common/ids.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/launch_shape.h"

namespace baton::engine::cuda {

inline constexpr int32_t kCandidates = 1024;

// A row's likeliest tokens have room for so many.
inline constexpr int32_t kTopPlaces = 20;

// A token and what is done to its logit. Each token of a row comes once in each
// of the row's lists.
struct LogitEdit {
  TokenId token = 0;
  // Of a bias: what is added. Of a penalty: how often the output has it.
  float value = 0;
};

inline constexpr int32_t kNoMask = 0;

// How one row is drawn.
struct SampleRow {
  float temperature = 0;  // 0: the highest logit
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  // Where the row's edits lie: biases, then penalties, then forbidden tokens.
  int32_t first_edit = 0;
  int32_t biases = 0;
  int32_t penalties = 0;
  int32_t forbidden = 0;
  // The row's bits of tokens that may come out (scheduling/token_mask.h): from
  // this word of SampleArgs::masks on, of which the first is none's; kNoMask:
  // all may.
  int32_t mask = kNoMask;
  // Not 0 when the row is to be left alone but for its statistics and its
  // likeliest tokens.
  int32_t statistics_only = 0;
  // How many of the likeliest tokens of the logits as they came are wanted, at
  // most kTopPlaces.
  int32_t top = 0;
  // The draw, in [0, 1).
  double uniform = 0;
};

// What came out.
struct SampleOutcome {
  // Of the logits as they came: whether all are finite, the greatest, and the
  // sum of exp(logit - greatest).
  int32_t finite = 0;
  float max = 0;
  double total = 0;
  // Not 0 when the host must draw.
  int32_t undecided = 0;
  TokenId token = 0;
  float own_logit = 0;  // the token's logit as it came
  // How many of the likeliest are there: as many as were wanted, or as there
  // are; none when `undecided`.
  int32_t top = 0;
};

// One of the likeliest tokens, with its logit as it came.
struct TopLogit {
  TokenId token = 0;
  float logit = 0;
};

struct SampleArgs {
  const float* logits = nullptr;  // [rows][stride], not changed
  float* edited = nullptr;        // [rows][stride], scratch
  int64_t stride = 0;
  int32_t vocab_size = 0;
  int32_t rows = 0;
  const SampleRow* how = nullptr;  // [rows]
  const LogitEdit* edits = nullptr;
  const uint32_t* masks = nullptr;
  SampleOutcome* outcomes = nullptr;  // [rows]
  // [rows][kTopPlaces], likeliest first, the lower id first on a tie.
  TopLogit* tops = nullptr;
};

LaunchShape SampleShape(const SampleArgs& args);
void RunSample(const SampleArgs& args, StreamHandle* stream);

// The tokens of a step that runs before the host knows those that it follows:
// tokens[i] = outcomes[from[i]].token, for `count` rows; 0 where the device
// drew none.
struct FollowArgs {
  const SampleOutcome* outcomes = nullptr;
  const int32_t* from = nullptr;
  int32_t count = 0;
  TokenId* tokens = nullptr;
};
void RunFollow(const FollowArgs& args, StreamHandle* stream);

// values[i] = logits[i][tokens[i]], for `rows` rows.
struct PickArgs {
  const float* logits = nullptr;  // [rows][stride]
  int64_t stride = 0;
  const TokenId* tokens = nullptr;
  int32_t rows = 0;
  float* values = nullptr;
};
void RunPick(const PickArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
