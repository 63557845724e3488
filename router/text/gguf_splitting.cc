// Names are llama.cpp's, expressions those of the models' tokenizer.json files.
#include "router/text/gguf_splitting.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

using nlohmann::json;

constexpr char kLlama3Words[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|)"
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr char kO200kWords[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr char kKimiWords[] =
    R"([\p{Han}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr char kDeepSeekLetters[] =
    R"(\s?[)"
    R"(A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-Ρ)"
    R"(Σ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ)"
    R"(ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂ)"
    R"(ℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛ)"
    R"(Ꜣ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟)"
    R"(𞤀-𞥃)"
    R"(]+)";
constexpr char kDeepSeekIdeographs[] =
    R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";

const std::vector<GgufSplitting>& Splittings() {
  static const auto* const splittings = new std::vector<GgufSplitting>{
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral",
                 "midm-2.0"},
       .regexes = {kLlama3Words},
       .ignores_merges = true,
       .adds_bos = true},
      {.names = {"glm4", "chatglm-bpe"}, .regexes = {kLlama3Words}},
      {.names = {"dbrx", "smaug-bpe"}, .regexes = {kLlama3Words}},
      {.names = {"qwen2", "deepseek-r1-qwen", "megrez"},
       .regexes = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|)"
                   R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                   R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
                   R"(\s+(?!\S)|\s+)"},
       .normalizes = true},
      {.names = {"tekken"},
       .regexes = {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)"
                   R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                   R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
                   R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
                   R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|)"
                   R"(\s+(?!\S)|\s+)"},
       .ignores_merges = true,
       .adds_bos = true},
      {.names = {"gpt-4o"}, .regexes = {kO200kWords}},
      {.names = {"kimi-k2"}, .regexes = {kKimiWords}, .ignores_merges = true},
      {.names = {"deepseek-llm"},
       .regexes = {R"([\r\n])", kDeepSeekLetters,
                   R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E})"
                   R"(\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
                   R"(\s+$)", kDeepSeekIdeographs},
       .splits_digits = true},
      {.names = {"deepseek-coder"},
       .regexes = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                   kDeepSeekIdeographs},
       .splits_digits = true},
      {.names = {"deepseek-v3"},
       .regexes = {R"(\p{N}{1,3})",
                   R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
                   R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
                   R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
                   R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|)"
                   R"(\s+(?!\S)|\s+)"}},
      {.names = {"seed-coder"},
       .regexes = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|)"
                   R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}|)"
                   R"( ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|)"
                   R"(\s+(?!\S)|\s+)"}},
      {.names = {"smollm", "refact", "starcoder", "codeshell", "minerva-7b"},
       .splits_digits = true},
      {.names = {"gpt-2", "gpt2", "mellum", "default"}},
  };
  return *splittings;
}

}  // namespace

const GgufSplitting* FindGgufSplitting(absl::string_view name) {
  for (const GgufSplitting& splitting : Splittings()) {
    if (std::find(splitting.names.begin(), splitting.names.end(), name) !=
        splitting.names.end()) {
      return &splitting;
    }
  }
  return nullptr;
}

std::string KnownGgufSplittings() {
  std::string all;
  for (const GgufSplitting& splitting : Splittings()) {
    const bool last = &splitting == &Splittings().back();
    absl::StrAppend(&all,
                    all.empty() ? ""
                    : last      ? " and "
                                : ", ",
                    splitting.names.front());
  }
  return all;
}

json ByteLevelStage(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json GgufSplitting::PreTokenizerJson() const {
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  json stages = json::array();
  if (splits_digits && regexes.empty()) stages.push_back(digits);
  for (const char* const regex : regexes) {
    stages.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", regex}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  }
  if (splits_digits && !regexes.empty()) stages.push_back(digits);
  stages.push_back(ByteLevelStage(/*use_regex=*/regexes.empty()));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(stages)}};
}

}  // namespace baton::router
