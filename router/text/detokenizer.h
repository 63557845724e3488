// From the token ids of one request, as they come, to text that can be sent.
#pragma once

#include <string>

#include "common/ids.h"
#include "router/text/decoder.h"
#include "router/text/tokenizer.h"

namespace baton::router {

// One per request; one thread at a time. The pieces it returns are valid UTF-8
// each, and together they are exactly Tokenizer::Decode of all the ids.
//
// So a token may give nothing yet: the first bytes of a character wait for the
// rest, and a run of byte-fallback tokens (<0xE6> and so on) waits for its end,
// because Hugging Face shows the whole run as U+FFFD if any of it is not UTF-8.
// Leading spaces are dropped at the start of the sequence only, where the
// decoder does that.
class Detokenizer final {
 public:
  // `tokenizer` outlives the detokenizer.
  explicit Detokenizer(const Tokenizer& tokenizer,
                       bool skip_special_tokens = true);

  // The text that is certain with this token. An id without a token, in the
  // vocabulary or not, is nothing.
  std::string Push(TokenId id);

  // The rest of the text. Call once, last.
  std::string Finish() { return stream_.Finish(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  DecoderStream stream_;
};

}  // namespace baton::router
