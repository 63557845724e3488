// Whole tokenizer.json files; what loads is used.
#include <memory>
#include <string>
#include <vector>

#include "common/log.h"
#include "common/utf8.h"
#include "router/text/detokenizer.h"
#include "router/text/tokenizer.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton::router {
namespace {

void Use(const Tokenizer& tokenizer, absl::string_view text) {
  const auto ids = tokenizer.Encode(text);
  if (!ids.ok()) return;
  for (const TokenId id : *ids) tokenizer.TokenBytes(id);
  Detokenizer detokenizer(tokenizer, /*skip_special_tokens=*/false);
  std::string streamed;
  for (const TokenId id : *ids) {
    const std::string piece = detokenizer.Push(id);
    CHECK(IsValidUtf8(piece));
    streamed += piece;
  }
  streamed += detokenizer.Finish();
  const auto decoded = tokenizer.Decode(*ids);
  // A post-processor may add ids that the vocabulary lacks.
  if (decoded.ok()) CHECK_EQ(*decoded, streamed);
}

}  // namespace
}  // namespace baton::router

FUZZ_TARGET(tokenizer_json)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  const std::string json = baton::fuzz::Exactly(input.Rest());
  const auto tokenizer =
      baton::router::Tokenizer::FromText(json, "tokenizer.json");
  if (!tokenizer.ok()) {
    CHECK(!tokenizer.status().message().empty());
    return 0;
  }
  baton::router::Use(**tokenizer, "");
  baton::router::Use(**tokenizer,
                     "Hello  world 123\n'll \xC3\xA9\xE2\x82\xAC!");
  // The file's own words, some of which are tokens.
  baton::router::Use(**tokenizer, absl::string_view(json).substr(0, 200));
  return 0;
}
