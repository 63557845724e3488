// Texts and token ids of clients, with three kinds of tokenizers. The first
// byte says which, and what is done.
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/utf8.h"
#include "router/text/detokenizer.h"
#include "router/text/tokenizer.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton::router {
namespace {

const Tokenizer& LoadOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  static auto* const kept = new std::vector<std::unique_ptr<Tokenizer>>();
  auto tokenizer = Tokenizer::FromText(json, path);
  CHECK(tokenizer.ok()) << tokenizer.status();
  kept->push_back(*std::move(tokenizer));
  return *kept->back();
}

const Tokenizer& TokenizerOf(uint8_t kind) {
  const std::string root = BATON_SOURCE_DIR;
  // Byte-level.
  static const Tokenizer& bytes =
      LoadOf(root + "/tests/data/tokenizers/stories/tokenizer.json");
  // SentencePiece, with byte fallback.
  static const Tokenizer& pieces =
      LoadOf(root + "/tests/data/tokenizers/spiece/tokenizer.json");
  // Splits by a regular expression, normalizes, and has an added token.
  static const Tokenizer& regex =
      LoadOf(root + "/tests/fuzz/corpus/tokenizer_json/byte_level_regex.json");
  switch (kind % 3) {
    case 0:
      return bytes;
    case 1:
      return pieces;
    default:
      return regex;
  }
}

// Whatever the ids, the pieces are what the whole is.
void CheckText(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
               bool skip_special_tokens) {
  const auto whole = tokenizer.Decode(ids, skip_special_tokens);
  CHECK(whole.ok()) << whole.status();
  CHECK(IsValidUtf8(*whole));
  Detokenizer detokenizer(tokenizer, skip_special_tokens);
  std::string streamed;
  for (const TokenId id : ids) {
    const std::string piece = detokenizer.Push(id);
    CHECK(IsValidUtf8(piece));
    streamed += piece;
  }
  streamed += detokenizer.Finish();
  CHECK_EQ(*whole, streamed);
}

void FuzzText(const Tokenizer& tokenizer, const EncodeOptions& options,
              const std::string& text) {
  const auto ids = tokenizer.Encode(text, options);
  if (!ids.ok()) {
    CHECK_EQ(static_cast<int>(ids.status().code()),
             static_cast<int>(absl::StatusCode::kResourceExhausted))
        << ids.status();
    return;
  }
  for (const TokenId id : *ids) {
    CHECK(id >= 0 && id < tokenizer.vocab_size());
  }
  CheckText(tokenizer, *ids, /*skip_special_tokens=*/false);
  CheckText(tokenizer, *ids, /*skip_special_tokens=*/true);
}

void FuzzIds(const Tokenizer& tokenizer, fuzz::FuzzInput& input) {
  std::vector<TokenId> ids;
  while (!input.empty()) {
    ids.push_back(static_cast<TokenId>(input.Number<uint16_t>() %
                                       tokenizer.vocab_size()));
  }
  CheckText(tokenizer, ids, /*skip_special_tokens=*/false);
  CheckText(tokenizer, ids, /*skip_special_tokens=*/true);
  // Outside of the vocabulary: an error, or nothing.
  ids.push_back(static_cast<TokenId>(tokenizer.vocab_size()));
  CHECK(!tokenizer.Decode(ids).ok());
  CHECK_EQ(Detokenizer(tokenizer).Push(ids.back()), "");
}

}  // namespace
}  // namespace baton::router

FUZZ_TARGET(tokenizer_text)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  const uint8_t kind = input.Byte();
  const baton::router::Tokenizer& tokenizer = baton::router::TokenizerOf(kind);
  if (kind % 8 == 7) {
    baton::router::FuzzIds(tokenizer, input);
  } else {
    baton::router::FuzzText(tokenizer,
                            {.add_special_tokens = (kind & 16) != 0,
                             .parse_special = (kind & 32) != 0},
                            baton::fuzz::Exactly(input.Rest()));
  }
  return 0;
}
