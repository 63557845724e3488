// A token's log-probability as clients get it.
#pragma once

#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"
#include "common/ids.h"
#include "router/text/tokenizer.h"
#include "scheduling/request.h"

namespace baton::router {

// Of a token, and of the likeliest in its place. Any thread.
void SetLogprobs(TokenId token, float logprob,
                 absl::Span<const scheduling::TokenLogprob> top,
                 const Tokenizer& tokenizer, v1::TokenLogprobs* wire);

}  // namespace baton::router
