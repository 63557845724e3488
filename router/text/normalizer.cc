#include "router/text/normalizer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/text_pattern.h"
#include "router/text/unicode.h"

namespace baton::router {
namespace {

using NormalizerPtr = std::unique_ptr<const Normalizer>;

constexpr size_t kMaxNormalizedBytes = size_t{1} << 30;

class UnicodeFormNormalizer final : public Normalizer {
 public:
  explicit UnicodeFormNormalizer(NormalizationForm form) : form_(form) {}
  absl::Status Apply(NormalizedText* text) const override {
    BATON_ASSIGN_OR_RETURN(text->text, NormalizeUnicode(form_, text->text));
    return absl::OkStatus();
  }

 private:
  NormalizationForm form_;
};

class LowercaseNormalizer final : public Normalizer {
 public:
  absl::Status Apply(NormalizedText* text) const override {
    text->text = LowercaseCharacters(text->text);
    return absl::OkStatus();
  }
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(NormalizedText* text) const override {
    if (!text->text.empty()) text->text.insert(0, prefix_);
    return absl::OkStatus();
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Apply(NormalizedText* text) const override {
    BATON_ASSIGN_OR_RETURN(text->text,
                           ReplaceMatches(pattern_, content_, text->text));
    return absl::OkStatus();
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  absl::Status Apply(NormalizedText* text) const override {
    const std::string& all = text->text;
    size_t begin = all.size();
    size_t end = 0;
    for (size_t at = 0; at < all.size();) {
      const Utf8Step step = NextUtf8(all, at);
      if (!IsWhitespace(step.code_point)) {
        begin = std::min(begin, at);
        end = at + step.size;
      }
      at += step.size;
    }
    if (!left_) begin = 0;
    if (!right_) end = all.size();
    text->at_start = text->at_start && begin == 0;
    text->text = begin < end ? all.substr(begin, end - begin) : "";
    return absl::OkStatus();
  }

 private:
  bool left_;
  bool right_;
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<NormalizerPtr> parts)
      : parts_(std::move(parts)) {}
  absl::Status Apply(NormalizedText* text) const override {
    for (const NormalizerPtr& part : parts_) {
      BATON_RETURN_IF_ERROR(part->Apply(text));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<NormalizerPtr> parts_;
};

absl::StatusOr<NormalizerPtr> SequenceFromJson(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements,
                         node.Array("normalizers"));
  std::vector<NormalizerPtr> parts;
  for (const JsonNode& element : elements) {
    BATON_ASSIGN_OR_RETURN(parts.emplace_back(), Normalizer::FromJson(element));
  }
  return std::make_unique<SequenceNormalizer>(std::move(parts));
}

absl::StatusOr<NormalizerPtr> ReplaceFromJson(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Field("pattern"));
  BATON_ASSIGN_OR_RETURN(TextPattern pattern,
                         TextPattern::FromJson(pattern_node));
  BATON_ASSIGN_OR_RETURN(std::string content, node.String("content"));
  return std::make_unique<ReplaceNormalizer>(std::move(pattern),
                                             std::move(content));
}

}  // namespace

absl::StatusOr<std::string> ReplaceMatches(const TextPattern& pattern,
                                           absl::string_view content,
                                           absl::string_view text) {
  std::vector<MatchSpan> spans;
  BATON_RETURN_IF_ERROR(pattern.FindAll(text, &spans));
  std::string out;
  out.reserve(text.size());
  for (const MatchSpan& span : spans) {
    absl::StrAppend(&out, span.is_match
                              ? content
                              : text.substr(span.begin, span.end - span.begin));
    if (out.size() > kMaxNormalizedBytes) {
      return absl::ResourceExhaustedError(
          "a Replace of the tokenizer makes the text too long");
    }
  }
  return out;
}

absl::StatusOr<NormalizerPtr> Normalizer::FromJson(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  using Form = NormalizationForm;
  if (type == "NFC") return std::make_unique<UnicodeFormNormalizer>(Form::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeFormNormalizer>(Form::kNfd);
  if (type == "NFKC") {
    return std::make_unique<UnicodeFormNormalizer>(Form::kNfkc);
  }
  if (type == "NFKD") {
    return std::make_unique<UnicodeFormNormalizer>(Form::kNfkd);
  }
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "Sequence") return SequenceFromJson(node);
  if (type == "Replace") return ReplaceFromJson(node);
  if (type == "Prepend") {
    BATON_ASSIGN_OR_RETURN(std::string prefix, node.String("prepend"));
    return std::make_unique<PrependNormalizer>(std::move(prefix));
  }
  if (type == "Strip") {
    BATON_ASSIGN_OR_RETURN(const bool left, node.Bool("strip_left", true));
    BATON_ASSIGN_OR_RETURN(const bool right, node.Bool("strip_right", true));
    return std::make_unique<StripNormalizer>(left, right);
  }
  return node.Unsupported("type");
}

}  // namespace baton::router
