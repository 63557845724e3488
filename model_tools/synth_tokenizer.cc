#include "model_tools/synth_tokenizer.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/json.h"
#include "common/log.h"

namespace baton::model_tools {
namespace {

using nlohmann::json;

constexpr absl::string_view kConsonants = "bcdfghjklmnpqrstvwxz";
constexpr absl::string_view kVowels = "aeiou";
constexpr int64_t kSyllables = 100;
static_assert(kConsonants.size() * kVowels.size() == kSyllables);

// UTF-8 of a code point below U+0800.
std::string Utf8(int32_t code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The characters that stand for bytes in byte-level vocabularies: printable
// Latin-1 characters stand for themselves, the others for U+0100 on.
std::vector<std::string> ByteSymbols() {
  std::vector<std::string> symbols;
  int32_t next = 0x100;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) ||
                           (byte >= 161 && byte <= 172) || byte >= 174;
    symbols.push_back(Utf8(printable ? byte : next++));
  }
  return symbols;
}

json SpecialToken(TokenId id, const char* content) {
  return {{"id", id},        {"content", content}, {"single_word", false},
          {"lstrip", false}, {"rstrip", false},    {"normalized", false},
          {"special", true}};
}

}  // namespace

std::string SynthWord(TokenId id) {
  CHECK_GT(id, kSynthEos);
  // Words of two syllables, then all of three, ...
  int64_t index = id - kSynthEos - 1;
  int32_t syllables = 2;
  int64_t count = kSyllables * kSyllables;
  while (index >= count) {
    index -= count;
    count *= kSyllables;
    ++syllables;
  }
  std::string word;
  for (int32_t i = 0; i < syllables; ++i) {
    const int64_t syllable = index % kSyllables;
    index /= kSyllables;
    word.insert(word.begin(), {kConsonants[syllable / kVowels.size()],
                               kVowels[syllable % kVowels.size()]});
  }
  return absl::StrCat(" ", word);
}

bool IsPrintableSynthToken(TokenId id) {
  return id == '\n' || (id >= 0x20 && id < 0x7f) || id > kSynthEos;
}

std::string SynthTokenizerJson(int32_t vocab_size) {
  CHECK_GE(vocab_size, kMinSynthVocabulary);
  json vocab = json::object();
  const std::vector<std::string> symbols = ByteSymbols();
  for (int32_t byte = 0; byte < 256; ++byte) vocab[symbols[byte]] = byte;
  vocab["<|bos|>"] = kSynthBos;
  vocab["<|eos|>"] = kSynthEos;
  for (TokenId id = kSynthEos + 1; id < vocab_size; ++id) {
    vocab[absl::StrCat(symbols[' '], SynthWord(id).substr(1))] = id;
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const json bos = {{"SpecialToken", {{"id", "<|bos|>"}, {"type_id", 0}}}};
  const auto sequence = [](const char* id, int32_t type) {
    return json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  const json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens",
                           {SpecialToken(kSynthBos, "<|bos|>"),
                            SpecialToken(kSynthEos, "<|eos|>")}},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor",
                           {{"type", "TemplateProcessing"},
                            {"single", {bos, sequence("A", 0)}},
                            {"pair", {bos, sequence("A", 0), sequence("B", 1)}},
                            {"special_tokens",
                             {{"<|bos|>",
                               {{"id", "<|bos|>"},
                                {"ids", {kSynthBos}},
                                {"tokens", {"<|bos|>"}}}}}}}},
                          {"decoder", byte_level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            // A word that is in the vocabulary is one token.
                            {"ignore_merges", true},
                            {"vocab", vocab},
                            {"merges", json::array()}}}};
  return absl::StrCat(tokenizer.dump(1), "\n");
}

std::string SynthTokenizerConfigJson(int32_t max_position) {
  const json config = {
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"bos_token", "<|bos|>"},
      {"eos_token", "<|eos|>"},
      {"model_max_length", max_position},
      {"clean_up_tokenization_spaces", false},
      {"chat_template",
       "{{ bos_token }}{% for message in messages %}"
       "{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
       "{% if add_generation_prompt %}assistant:{% endif %}"}};
  return absl::StrCat(config.dump(1), "\n");
}

}  // namespace baton::model_tools
