// Names of keys are those of the GGUF specification; the names of
// tokenizer.ggml.pre and what they stand for are those of llama.cpp.
#include "router/text/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/bpe_model.h"
#include "router/text/gguf_splitting.h"

namespace baton::router {
namespace {

using nlohmann::json;

constexpr absl::string_view kModel = "tokenizer.ggml.model";
constexpr absl::string_view kPre = "tokenizer.ggml.pre";
constexpr absl::string_view kTokens = "tokenizer.ggml.tokens";
constexpr absl::string_view kTypes = "tokenizer.ggml.token_type";
constexpr absl::string_view kScores = "tokenizer.ggml.scores";
constexpr absl::string_view kMerges = "tokenizer.ggml.merges";

// "▁", which stands for a space in SentencePiece vocabularies.
constexpr char kSpace[] = "\u2581";

enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Vocabulary {
  absl::Span<const absl::string_view> tokens;
  std::vector<int64_t> types;  // as many
};

absl::StatusOr<Vocabulary> ReadVocabulary(const gguf::GgufFile& file) {
  Vocabulary vocabulary;
  BATON_ASSIGN_OR_RETURN(vocabulary.tokens, file.Strings(kTokens));
  const size_t count = vocabulary.tokens.size();
  if (count == 0 || count > kMaxVocabularySize) {
    return file.Invalid(
        kTokens, absl::StrCat("has ", count, " entries, it must have 1 to ",
                              kMaxVocabularySize));
  }
  for (const absl::string_view token : vocabulary.tokens) {
    if (!IsValidUtf8(token)) {
      return file.Invalid(kTokens, absl::StrCat("holds ", gguf::Quoted(token),
                                                ", which is not UTF-8"));
    }
  }
  vocabulary.types.assign(count, kNormal);
  if (file.Has(kTypes)) {
    BATON_ASSIGN_OR_RETURN(vocabulary.types, file.Integers(kTypes));
  }
  if (vocabulary.types.size() != count) {
    return file.Invalid(
        kTypes, absl::StrCat("has ", vocabulary.types.size(),
                             " entries, but there are ", count, " tokens"));
  }
  return vocabulary;
}

// Token -> id, of the first where a spelling is there twice.
json VocabJson(const Vocabulary& vocabulary) {
  json vocab = json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id].empty()) continue;
    vocab.emplace(std::string(vocabulary.tokens[id]), id);
  }
  return vocab;
}

// Whether white space that follows tokens of a template is dropped, as Phi-3's
// tokenizer.json has it; GGUF files do not say it. (Phi-4's are of another
// kind.)
absl::StatusOr<bool> DropsSpaceAfterTokens(const gguf::GgufFile& file,
                                           absl::string_view model) {
  constexpr absl::string_view kArchitecture = "general.architecture";
  if (model != "llama" || !file.Has(kArchitecture)) return false;
  BATON_ASSIGN_OR_RETURN(const absl::string_view architecture,
                         file.String(kArchitecture));
  return architecture == "phi3";
}

bool IsOfNoTemplate(absl::string_view token) {
  return token == "<unk>" || token == "<s>" || token == "<|endoftext|>";
}

// Tokens that are cut out of texts whole.
json AddedTokensJson(const Vocabulary& vocabulary, bool drops_space) {
  json added = json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int64_t type = vocabulary.types[id];
    const bool is_special = type == kControl || type == kUnknown;
    if (vocabulary.tokens[id].empty()) continue;
    if (!is_special && type != kUserDefined) continue;
    added.push_back(
        {{"id", id},
         {"content", std::string(vocabulary.tokens[id])},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", drops_space && !IsOfNoTemplate(vocabulary.tokens[id])},
         {"normalized", false},
         {"special", is_special}});
  }
  return added;
}

// The spelling of the token that `key` names, or nothing.
absl::StatusOr<std::optional<std::string>> NamedToken(
    const gguf::GgufFile& file, absl::string_view key,
    const Vocabulary& vocabulary) {
  if (!file.Has(key)) return std::optional<std::string>();
  const auto last = static_cast<int64_t>(vocabulary.tokens.size()) - 1;
  BATON_ASSIGN_OR_RETURN(const int64_t id, file.Integer(key, 0, last));
  return std::optional<std::string>(vocabulary.tokens[id]);
}

// Puts the tokens of the beginning and the end around a text where the file
// asks for it.
absl::StatusOr<json> PostProcessorJson(const gguf::GgufFile& file,
                                       const Vocabulary& vocabulary,
                                       bool adds_bos) {
  json single = json::array();
  json special_tokens = json::object();
  const auto add = [&](const char* name, bool wanted) -> absl::Status {
    const std::string flag =
        absl::StrCat("tokenizer.ggml.add_", name, "_token");
    const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
    if (file.Has(flag)) {
      BATON_ASSIGN_OR_RETURN(wanted, file.Bool(flag));
    }
    if (!wanted || !file.Has(key)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const auto token, NamedToken(file, key, vocabulary));
    BATON_ASSIGN_OR_RETURN(
        const int64_t id,
        file.Integer(key, 0, static_cast<int64_t>(kMaxVocabularySize)));
    single.push_back({{"SpecialToken", {{"id", *token}, {"type_id", 0}}}});
    special_tokens[*token] = {
        {"id", *token}, {"ids", {id}}, {"tokens", {*token}}};
    return absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(add("bos", adds_bos));
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  BATON_RETURN_IF_ERROR(add("eos", false));
  return json{{"type", "TemplateProcessing"},
              {"single", std::move(single)},
              {"pair", json::array()},
              {"special_tokens", std::move(special_tokens)}};
}

absl::StatusOr<const GgufSplitting*> SplittingOf(const gguf::GgufFile& file) {
  absl::string_view name = "default";
  if (file.Has(kPre)) {
    BATON_ASSIGN_OR_RETURN(name, file.String(kPre));
  }
  if (name == "default") {
    LOG(WARNING) << file.path() << ": " << kPre
                 << " does not say how texts are split; taking GPT-2's way";
  }
  const GgufSplitting* const splitting = FindGgufSplitting(name);
  if (splitting != nullptr) return splitting;
  return absl::UnimplementedError(
      absl::StrCat(file.path(), ": ", kPre, " is ", gguf::Quoted(name),
                   "; Baton knows ", KnownGgufSplittings()));
}

absl::StatusOr<json> ByteLevelJson(const gguf::GgufFile& file,
                                   const Vocabulary& vocabulary) {
  BATON_ASSIGN_OR_RETURN(const GgufSplitting* const splitting,
                         SplittingOf(file));
  BATON_ASSIGN_OR_RETURN(const auto merge_list, file.Strings(kMerges));
  json merges = json::array();
  for (const absl::string_view merge : merge_list) {
    if (!IsValidUtf8(merge) ||
        std::count(merge.begin(), merge.end(), ' ') != 1) {
      return file.Invalid(kMerges, absl::StrCat("holds ", gguf::Quoted(merge),
                                                ", which is not a pair"));
    }
    merges.push_back(std::string(merge));
  }
  BATON_ASSIGN_OR_RETURN(
      json post_processor,
      PostProcessorJson(file, vocabulary, splitting->adds_bos));
  return json{
      {"normalizer", splitting->normalizes ? json{{"type", "NFC"}} : json()},
      {"pre_tokenizer", splitting->PreTokenizerJson()},
      {"post_processor", std::move(post_processor)},
      {"decoder", ByteLevelStage(/*use_regex=*/true)},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", splitting->ignores_merges},
        {"vocab", VocabJson(vocabulary)},
        {"merges", std::move(merges)}}}};
}

struct ScoredMerge {
  size_t left;  // ids
  size_t right;
  float score;
};

// SentencePiece joins, again and again, the neighbours whose joined token has
// the highest score. As a list of merges: every way to cut a token into two, in
// the order of the tokens' scores, equal ones in that of the ids. (So do the
// tokenizer.json files of such models.)
absl::StatusOr<json> MergesOfScores(const gguf::GgufFile& file,
                                    const Vocabulary& vocabulary) {
  BATON_ASSIGN_OR_RETURN(const std::vector<float> scores, file.Floats(kScores));
  if (scores.size() != vocabulary.tokens.size()) {
    return file.Invalid(
        kScores, absl::StrCat("has ", scores.size(), " entries, but there are ",
                              vocabulary.tokens.size(), " tokens"));
  }
  absl::flat_hash_map<absl::string_view, size_t> ids;
  for (size_t id = 0; id < scores.size(); ++id) {
    if (std::isnan(scores[id])) {
      return file.Invalid(kScores,
                          absl::StrCat("has no number for token ", id));
    }
    if (vocabulary.types[id] == kNormal) ids.emplace(vocabulary.tokens[id], id);
  }
  std::vector<ScoredMerge> merges;
  for (size_t id = 0; id < scores.size(); ++id) {
    const absl::string_view token = vocabulary.tokens[id];
    if (vocabulary.types[id] != kNormal || token.empty()) continue;
    const auto first = static_cast<std::ptrdiff_t>(merges.size());
    for (size_t at = NextUtf8(token, 0).size; at < token.size();
         at += NextUtf8(token, at).size) {
      const auto left = ids.find(token.substr(0, at));
      const auto right = ids.find(token.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({left->second, right->second, scores[id]});
    }
    std::sort(merges.begin() + first, merges.end(),
              [](const ScoredMerge& a, const ScoredMerge& b) {
                return std::pair(a.left, a.right) < std::pair(b.left, b.right);
              });
  }
  std::stable_sort(merges.begin(), merges.end(),
                   [](const ScoredMerge& a, const ScoredMerge& b) {
                     return a.score > b.score;
                   });
  json list = json::array();
  for (const ScoredMerge& merge : merges) {
    list.push_back({std::string(vocabulary.tokens[merge.left]),
                    std::string(vocabulary.tokens[merge.right])});
  }
  return list;
}

absl::StatusOr<json> SentencePieceJson(const gguf::GgufFile& file,
                                       const Vocabulary& vocabulary) {
  constexpr absl::string_view kSpacePrefix = "tokenizer.ggml.add_space_prefix";
  BATON_ASSIGN_OR_RETURN(json merges, MergesOfScores(file, vocabulary));
  BATON_ASSIGN_OR_RETURN(
      const auto unknown,
      NamedToken(file, "tokenizer.ggml.unknown_token_id", vocabulary));
  bool space_prefix = true;
  if (file.Has(kSpacePrefix)) {
    BATON_ASSIGN_OR_RETURN(space_prefix, file.Bool(kSpacePrefix));
  }
  json normalizers = json::array();
  if (space_prefix) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  }
  normalizers.push_back({{"type", "Replace"},
                         {"pattern", {{"String", " "}}},
                         {"content", kSpace}});
  json decoders = json::array({{{"type", "Replace"},
                                {"pattern", {{"String", kSpace}}},
                                {"content", " "}},
                               {{"type", "ByteFallback"}},
                               {{"type", "Fuse"}}});
  if (space_prefix) {
    decoders.push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  BATON_ASSIGN_OR_RETURN(
      json post_processor,
      PostProcessorJson(file, vocabulary, /*adds_bos=*/true));
  return json{
      {"normalizer",
       {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
      {"post_processor", std::move(post_processor)},
      {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
      {"model",
       {{"type", "BPE"},
        {"byte_fallback", true},
        {"fuse_unk", true},
        {"unk_token", unknown.has_value() ? json(*unknown) : json()},
        {"vocab", VocabJson(vocabulary)},
        {"merges", std::move(merges)}}}};
}

}  // namespace

absl::StatusOr<json> GgufTokenizerJson(const gguf::GgufFile& file) {
  BATON_ASSIGN_OR_RETURN(const absl::string_view model, file.String(kModel));
  BATON_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(file));
  json document;
  if (model == "gpt2") {
    BATON_ASSIGN_OR_RETURN(document, ByteLevelJson(file, vocabulary));
  } else if (model == "llama") {
    BATON_ASSIGN_OR_RETURN(document, SentencePieceJson(file, vocabulary));
  } else {
    return absl::UnimplementedError(
        absl::StrCat(file.path(), ": ", kModel, " is ", gguf::Quoted(model),
                     "; Baton knows gpt2 and llama"));
  }
  document["version"] = "1.0";
  BATON_ASSIGN_OR_RETURN(const bool drops_space,
                         DropsSpaceAfterTokens(file, model));
  document["added_tokens"] = AddedTokensJson(vocabulary, drops_space);
  return document;
}

}  // namespace baton::router
