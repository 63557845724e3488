#include "router/text/detokenizer.h"

namespace baton::router {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(&tokenizer),
      skip_special_tokens_(skip_special_tokens),
      stream_(tokenizer.decoder_) {}

std::string Detokenizer::Push(TokenId id) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return "";
  const std::string* spelling = tokenizer_->SpellingOf(id);
  return spelling == nullptr ? "" : stream_.Push(*spelling);
}

}  // namespace baton::router
