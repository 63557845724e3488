#include "router/answer_logprobs.h"

#include <cstdint>

namespace baton::router {
namespace {

void SetLogprob(TokenId id, float logprob, const Tokenizer& tokenizer,
                v1::TokenLogprob* wire) {
  wire->set_id(static_cast<uint32_t>(id));
  wire->set_logprob(logprob);
  wire->set_token(tokenizer.TokenBytes(id));
}

}  // namespace

void SetLogprobs(TokenId token, float logprob,
                 absl::Span<const scheduling::TokenLogprob> top,
                 const Tokenizer& tokenizer, v1::TokenLogprobs* wire) {
  SetLogprob(token, logprob, tokenizer, wire->mutable_chosen());
  for (const scheduling::TokenLogprob& other : top) {
    SetLogprob(other.token, other.logprob, tokenizer, wire->add_top());
  }
}

}  // namespace baton::router
