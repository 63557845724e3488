// How the rows of a step are drawn: from the plan's sampling parameters to what
// the kernel reads (sample.h), and from what it wrote to sampled tokens. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/cuda/sample.h"
#include "scheduling/step_plan.h"
#include "scheduling/token_mask.h"

namespace baton::engine::cuda {

// Edits that all rows of a step may have together on the device; the host draws
// for rows with more.
inline constexpr int32_t kMaxEdits = 8192;

// And masks, of which one takes a bit for each token.
inline constexpr int32_t kMaxMasks = 256;

// What all rows of a step are drawn with besides. Masks are the plan's.
struct DrawLists {
  std::vector<LogitEdit> edits;
  std::vector<const scheduling::TokenMask*> masks;
};

// What the device is asked for the row of a sequence's `index`-th sample (of
// PlannedSequence::num_samples). Appends the row's edits and its mask, whose
// place among the lists', from 1 on, is SampleRow::mask until they lie
// somewhere. When there is no room for them, or the plan asks for what only the
// host gives (the logits), it leaves the draw to the host. REQUIRES:
// sequence.sample, a well-formed plan.
SampleRow PlanSample(const scheduling::PlannedSequence& sequence, int32_t index,
                     int32_t vocab_size, DrawLists* lists);

// Whether the host needs the row's logits: it was asked to from the start, or
// the device could not decide.
bool HostDraws(const SampleRow& row, const SampleOutcome& outcome);

// The token that the device drew, with at most `most` of the likeliest ones,
// which are the row's. Not for rows that the host draws.
scheduling::SampledToken TokenOf(SequenceId sequence,
                                 const SampleOutcome& outcome,
                                 const TopLogit* tops, int32_t most);

// At most `most` of the likeliest tokens of a row that is decided.
std::vector<scheduling::TokenLogprob> TopOf(const SampleOutcome& outcome,
                                            const TopLogit* tops, int32_t most);

// The `index`-th sample, drawn here from the row's logits; they are
// overwritten.
scheduling::SampledToken DrawOnHost(const scheduling::PlannedSequence& sequence,
                                    int32_t index, absl::Span<float> logits);

// The logarithm of the probability of a token whose logit is `logit`; NaN where
// the logits were not finite.
float LogprobOf(float logit, const SampleOutcome& outcome);

}  // namespace baton::engine::cuda
