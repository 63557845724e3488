// The router's side of the wire: messages to workers from the router's own
// types, and back. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "baton/v1/worker.pb.h"
#include "common/ids.h"
#include "router/text/tokenizer.h"
#include "scheduling/placement.h"
#include "scheduling/request.h"
#include "scheduling/request_lifecycle.h"

namespace baton::router {

// The sequence as it stands: the prompt, then `output`, and how urgent it is
// now. `time_left` > 0.
v1::SequenceSpec MakeSequenceSpec(const scheduling::RequestSpec& spec,
                                  const std::vector<TokenId>& output,
                                  absl::Duration time_left,
                                  const scheduling::Urgency& urgency);

// `prefill_incarnation`: of action.prefill; 0 without it, or when it is gone.
v1::RouterMessage MakeReserve(const scheduling::SendReserve& action,
                              const v1::SequenceSpec& sequence,
                              uint64_t prefill_incarnation);
v1::RouterMessage MakePrefill(const scheduling::SendPrefill& action,
                              const v1::SequenceSpec& sequence);
v1::RouterMessage MakeCancel(const scheduling::CancelLeg& action);

// What each of the model's tokens adds to an answer; special ones nothing, and
// markers MarkerBytes (output_format/harmony_grammar.h).
v1::Vocabulary MakeVocabulary(const Tokenizer& tokenizer, int32_t vocab_size);

v1::FinishReason ToWire(scheduling::FinishReason reason);
v1::WorkerRole ToWire(scheduling::WorkerRole role);
scheduling::RefusalKind KindOf(v1::RefusalReason reason);

// What a worker said of a prompt's own tokens: of `first` and those behind it.
struct ReportedPromptLogprobs {
  int32_t first = 0;
  std::vector<float> logprobs;
  // Of each; none when none were asked for.
  std::vector<std::vector<scheduling::TokenLogprob>> top;
};
// Nothing when it cannot be of a prompt of so many tokens of the model.
std::optional<ReportedPromptLogprobs> FromWire(const v1::PromptLogprobs& wire,
                                               size_t prompt_tokens,
                                               int32_t vocab_size);

// Nothing when the token, or one of the likeliest with it, cannot be one of the
// model's, or when there are more of those than anybody may ask for.
std::optional<scheduling::ReportedToken> FromWire(const v1::Token& token,
                                                  int32_t vocab_size);

}  // namespace baton::router
