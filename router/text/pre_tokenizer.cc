#include "router/text/pre_tokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/byte_alphabet.h"
#include "router/text/text_pattern.h"
#include "router/text/unicode.h"

namespace baton::router {
namespace {

using PreTokenizerPtr = std::unique_ptr<const PreTokenizer>;

// openai/gpt-2, encoder.py.
constexpr absl::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";

// Splits every piece at the delimiters that `pattern` finds in it.
absl::Status SplitPieces(const TextPattern& pattern, SplitBehavior behavior,
                         bool invert, TextPieces* pieces) {
  std::vector<TextPieces::Piece> split;
  split.reserve(pieces->pieces.size());
  std::vector<MatchSpan> matches;
  for (const TextPieces::Piece& piece : pieces->pieces) {
    matches.clear();
    BATON_RETURN_IF_ERROR(pattern.FindAll(pieces->View(piece), &matches));
    for (const TextSpan& span : SplitAtMatches(matches, behavior, invert)) {
      split.push_back({piece.begin + span.begin, piece.begin + span.end,
                       piece.at_start && span.begin == 0});
    }
  }
  pieces->pieces = std::move(split);
  return absl::OkStatus();
}

class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(TextPattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  absl::Status Apply(TextPieces* pieces) const override {
    return SplitPieces(pattern_, behavior_, invert_, pieces);
  }

 private:
  TextPattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  // `words` is the GPT-2 pattern, or null where the pieces stay as they are.
  ByteLevelPreTokenizer(bool add_prefix_space,
                        std::unique_ptr<const TextPattern> words)
      : add_prefix_space_(add_prefix_space), words_(std::move(words)) {}

  absl::Status Apply(TextPieces* pieces) const override {
    if (add_prefix_space_) AddPrefixSpaces(pieces);
    if (words_ != nullptr) {
      BATON_RETURN_IF_ERROR(SplitPieces(*words_, SplitBehavior::kIsolated,
                                        /*invert=*/false, pieces));
    }
    TextPieces mapped;
    mapped.text.reserve(pieces->text.size() * 3 / 2);
    mapped.pieces.reserve(pieces->pieces.size());
    for (const TextPieces::Piece& piece : pieces->pieces) {
      const size_t begin = mapped.text.size();
      for (const char c : pieces->View(piece)) {
        mapped.text.append(ByteCharacter(static_cast<uint8_t>(c)));
      }
      mapped.pieces.push_back({begin, mapped.text.size(), piece.at_start});
    }
    *pieces = std::move(mapped);
    return absl::OkStatus();
  }

  bool IsByteLevel() const override { return true; }

 private:
  static void AddPrefixSpaces(TextPieces* pieces) {
    TextPieces spaced;
    spaced.text.reserve(pieces->text.size() + pieces->pieces.size());
    for (const TextPieces::Piece& piece : pieces->pieces) {
      const size_t begin = spaced.text.size();
      const absl::string_view text = pieces->View(piece);
      if (!absl::StartsWith(text, " ")) spaced.text.push_back(' ');
      absl::StrAppend(&spaced.text, text);
      spaced.pieces.push_back({begin, spaced.text.size(), piece.at_start});
    }
    *pieces = std::move(spaced);
  }

  bool add_prefix_space_;
  std::unique_ptr<const TextPattern> words_;
};

enum class PrependScheme { kFirst, kNever, kAlways };

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string replacement, PrependScheme scheme,
                        bool split)
      : replacement_(std::move(replacement)),
        scheme_(scheme),
        split_(split),
        delimiter_(replacement_) {}

  absl::Status Apply(TextPieces* pieces) const override {
    TextPieces replaced;
    replaced.text.reserve(pieces->text.size() * 3 / 2);
    for (const TextPieces::Piece& piece : pieces->pieces) {
      const size_t begin = replaced.text.size();
      const absl::string_view text = pieces->View(piece);
      const bool has_it =
          absl::StartsWith(text, " ") || absl::StartsWith(text, replacement_);
      if (!has_it && Prepends(piece)) replaced.text.append(replacement_);
      for (const char c : text) {
        if (c == ' ') {
          replaced.text.append(replacement_);
        } else {
          replaced.text.push_back(c);
        }
      }
      replaced.pieces.push_back({begin, replaced.text.size(), piece.at_start});
    }
    *pieces = std::move(replaced);
    if (!split_) return absl::OkStatus();
    return SplitPieces(delimiter_, SplitBehavior::kMergedWithNext,
                       /*invert=*/false, pieces);
  }

 private:
  bool Prepends(const TextPieces::Piece& piece) const {
    switch (scheme_) {
      case PrependScheme::kFirst:
        return piece.at_start;
      case PrependScheme::kNever:
        return false;
      case PrependScheme::kAlways:
        return true;
    }
    LOG(FATAL) << "no such prepend scheme";
    return false;
  }

  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
  TextPattern delimiter_;
};

// Runs of word characters and runs of other visible ones: `\w+|[^\w\s]+` of
// Rust's regex crate.
class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  absl::Status Apply(TextPieces* pieces) const override {
    std::vector<TextPieces::Piece> words;
    for (const TextPieces::Piece& piece : pieces->pieces) {
      Kind run = Kind::kSpace;
      size_t begin = piece.begin;
      const auto end_run = [&](size_t end) {
        if (run == Kind::kSpace || begin == end) return;
        words.push_back({begin, end, piece.at_start && begin == piece.begin});
      };
      for (size_t at = piece.begin; at < piece.end;) {
        const Utf8Step step = NextUtf8(pieces->text, at);
        const Kind kind = KindOf(step.code_point);
        if (kind != run) {
          end_run(at);
          run = kind;
          begin = at;
        }
        at += step.size;
      }
      end_run(piece.end);
    }
    pieces->pieces = std::move(words);
    return absl::OkStatus();
  }

 private:
  enum class Kind { kSpace, kWord, kOther };

  static Kind KindOf(char32_t code_point) {
    if (IsWordCharacter(code_point)) return Kind::kWord;
    return IsWhitespace(code_point) ? Kind::kSpace : Kind::kOther;
  }
};

class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<PreTokenizerPtr> parts)
      : parts_(std::move(parts)) {}
  absl::Status Apply(TextPieces* pieces) const override {
    for (const PreTokenizerPtr& part : parts_) {
      BATON_RETURN_IF_ERROR(part->Apply(pieces));
    }
    return absl::OkStatus();
  }
  // Only the last word counts: what follows the mapping sees characters.
  bool IsByteLevel() const override {
    return !parts_.empty() && parts_.back()->IsByteLevel();
  }

 private:
  std::vector<PreTokenizerPtr> parts_;
};

absl::StatusOr<PreTokenizerPtr> StepsFromJson(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements,
                         node.Array("pretokenizers"));
  std::vector<PreTokenizerPtr> parts;
  for (const JsonNode& element : elements) {
    BATON_ASSIGN_OR_RETURN(parts.emplace_back(),
                           PreTokenizer::FromJson(element));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

absl::StatusOr<PreTokenizerPtr> SplitFromJson(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Field("pattern"));
  BATON_ASSIGN_OR_RETURN(TextPattern pattern,
                         TextPattern::FromJson(pattern_node));
  BATON_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                         SplitBehaviorFromJson(node, "behavior"));
  BATON_ASSIGN_OR_RETURN(const bool invert, node.Bool("invert", false));
  return std::make_unique<SplitPreTokenizer>(std::move(pattern), behavior,
                                             invert);
}

absl::StatusOr<PreTokenizerPtr> ByteLevelFromJson(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const bool prefix_space,
                         node.Bool("add_prefix_space", true));
  BATON_ASSIGN_OR_RETURN(const bool use_regex, node.Bool("use_regex", true));
  std::unique_ptr<const TextPattern> words;
  if (use_regex) {
    absl::StatusOr<Regex> regex = Regex::Compile(kGpt2Pattern);
    CHECK(regex.ok()) << regex.status();
    words = std::make_unique<TextPattern>(*std::move(regex));
  }
  return std::make_unique<ByteLevelPreTokenizer>(prefix_space,
                                                 std::move(words));
}

absl::StatusOr<PreTokenizerPtr> MetaspaceFromJson(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(std::string replacement, node.String("replacement"));
  if (replacement.empty() ||
      static_cast<size_t>(NextUtf8(replacement, 0).size) !=
          replacement.size()) {
    return node.Invalid("has a replacement that is not one character");
  }
  BATON_ASSIGN_OR_RETURN(const bool prefix_space,
                         node.Bool("add_prefix_space", true));
  BATON_ASSIGN_OR_RETURN(
      const std::string name,
      node.String("prepend_scheme", prefix_space ? "always" : "never"));
  PrependScheme scheme = PrependScheme::kAlways;
  if (name == "first") {
    scheme = PrependScheme::kFirst;
  } else if (name == "never") {
    scheme = PrependScheme::kNever;
  } else if (name != "always") {
    return node.Unsupported("prepend_scheme");
  }
  BATON_ASSIGN_OR_RETURN(const bool split, node.Bool("split", true));
  return std::make_unique<MetaspacePreTokenizer>(std::move(replacement), scheme,
                                                 split);
}

}  // namespace

absl::StatusOr<PreTokenizerPtr> PreTokenizer::FromJson(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "Sequence") return StepsFromJson(node);
  if (type == "Split") return SplitFromJson(node);
  if (type == "ByteLevel") return ByteLevelFromJson(node);
  if (type == "Metaspace") return MetaspaceFromJson(node);
  if (type == "Whitespace") return std::make_unique<WhitespacePreTokenizer>();
  if (type == "Digits") {
    BATON_ASSIGN_OR_RETURN(const bool individual,
                           node.Bool("individual_digits", false));
    return std::make_unique<SplitPreTokenizer>(
        TextPattern(&IsNumeric),
        individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
        /*invert=*/false);
  }
  if (type == "WhitespaceSplit") {
    return std::make_unique<SplitPreTokenizer>(
        TextPattern(&IsWhitespace), SplitBehavior::kRemoved, /*invert=*/false);
  }
  if (type == "Punctuation") {
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (node.Has("behavior")) {
      BATON_ASSIGN_OR_RETURN(behavior, SplitBehaviorFromJson(node, "behavior"));
    }
    return std::make_unique<SplitPreTokenizer>(TextPattern(&IsPunctuation),
                                               behavior, /*invert=*/false);
  }
  return node.Unsupported("type");
}

}  // namespace baton::router
