#include "router/text/decoder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/byte_alphabet.h"
#include "router/text/byte_token.h"
#include "router/text/decoder_stages.h"
#include "router/text/normalizer.h"

namespace baton::router {
namespace {

constexpr int64_t kMaxStrip = int64_t{1} << 20;

absl::StatusOr<std::string> CharacterField(const JsonNode& node,
                                           absl::string_view field) {
  BATON_ASSIGN_OR_RETURN(std::string character, node.String(field));
  if (character.empty() ||
      static_cast<size_t>(NextUtf8(character, 0).size) != character.size()) {
    return node.Unsupported(field);
  }
  return character;
}

std::string Replaced(absl::string_view text, absl::string_view from,
                     absl::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at, from.size()) == from) {
      absl::StrAppend(&out, to);
      at += from.size();
    } else {
      out.push_back(text[at++]);
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<Decoder> Decoder::FromJson(const JsonNode& node) {
  Decoder decoder;
  decoder.joins_with_spaces_ = false;
  BATON_RETURN_IF_ERROR(decoder.Add(node));
  return decoder;
}

absl::Status Decoder::Add(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevelStep{});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallbackStep{});
  } else if (type == "Fuse") {
    steps_.emplace_back(FuseStep{});
  } else if (type == "Replace") {
    BATON_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Field("pattern"));
    BATON_ASSIGN_OR_RETURN(TextPattern pattern,
                           TextPattern::FromJson(pattern_node));
    BATON_ASSIGN_OR_RETURN(std::string content, node.String("content"));
    steps_.emplace_back(ReplaceStep{
        std::make_shared<TextPattern>(std::move(pattern)), std::move(content)});
  } else if (type == "Strip") {
    BATON_ASSIGN_OR_RETURN(std::string content,
                           CharacterField(node, "content"));
    BATON_ASSIGN_OR_RETURN(const int64_t start, node.Count("start", kMaxStrip));
    BATON_ASSIGN_OR_RETURN(const int64_t stop, node.Count("stop", kMaxStrip));
    steps_.emplace_back(StripStep{std::move(content), start, stop});
  } else if (type == "Metaspace") {
    BATON_ASSIGN_OR_RETURN(std::string replacement,
                           CharacterField(node, "replacement"));
    BATON_ASSIGN_OR_RETURN(const bool prefix_space,
                           node.Bool("add_prefix_space", true));
    BATON_ASSIGN_OR_RETURN(
        const std::string scheme,
        node.String("prepend_scheme", prefix_space ? "always" : "never"));
    steps_.emplace_back(
        MetaspaceStep{std::move(replacement), scheme != "never"});
  } else if (type == "Sequence") {
    BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> decoders,
                           node.Array("decoders"));
    for (const JsonNode& decoder : decoders) {
      BATON_RETURN_IF_ERROR(Add(decoder));
    }
  } else {
    return node.Unsupported("type");
  }
  return absl::OkStatus();
}

std::string Decoder::TokenBytes(absl::string_view token) const {
  std::string bytes(token);
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevelStep>(step)) {
      std::string mapped;
      AppendByteLevelToken(bytes, &mapped);
      // What comes behind works on text, which bytes need not be.
      return mapped;
    }
    if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
      absl::StatusOr<std::string> replaced =
          ReplaceMatches(*replace->pattern, replace->content, bytes);
      if (replaced.ok()) bytes = *std::move(replaced);
    } else if (const auto* metaspace = std::get_if<MetaspaceStep>(&step)) {
      bytes = Replaced(bytes, metaspace->replacement, " ");
    } else if (std::holds_alternative<ByteFallbackStep>(step)) {
      if (const std::optional<uint8_t> byte = ByteOfToken(bytes)) {
        return std::string(1, static_cast<char>(*byte));
      }
    }
  }
  return bytes;
}

DecoderStream::DecoderStream(const Decoder& decoder)
    : out_(std::make_unique<std::string>()) {
  // From the last stage to the first.
  stages_.push_back(std::make_unique<CollectStage>(out_.get()));
  if (decoder.joins_with_spaces_) {
    stages_.push_back(
        std::make_unique<JoinWithSpacesStage>(stages_.back().get()));
  }
  for (auto it = decoder.steps_.rbegin(); it != decoder.steps_.rend(); ++it) {
    DecoderStage* const next = stages_.back().get();
    if (std::holds_alternative<Decoder::ByteLevelStep>(*it)) {
      stages_.push_back(std::make_unique<ByteLevelStage>(next));
    } else if (std::holds_alternative<Decoder::ByteFallbackStep>(*it)) {
      stages_.push_back(std::make_unique<ByteFallbackStage>(next));
    } else if (std::holds_alternative<Decoder::FuseStep>(*it)) {
      stages_.push_back(std::make_unique<FuseStage>(next));
    } else if (const auto* replace = std::get_if<Decoder::ReplaceStep>(&*it)) {
      stages_.push_back(std::make_unique<ReplaceStage>(next, *replace->pattern,
                                                       replace->content));
    } else if (const auto* strip = std::get_if<Decoder::StripStep>(&*it)) {
      stages_.push_back(std::make_unique<StripStage>(
          next, strip->content, strip->start, strip->stop));
    } else {
      const auto& metaspace = std::get<Decoder::MetaspaceStep>(*it);
      stages_.push_back(std::make_unique<MetaspaceStage>(
          next, metaspace.replacement, metaspace.drops_first));
    }
  }
}

DecoderStream::DecoderStream(DecoderStream&&) = default;
DecoderStream& DecoderStream::operator=(DecoderStream&&) = default;
DecoderStream::~DecoderStream() = default;

std::string DecoderStream::Push(absl::string_view token) {
  stages_.back()->Text(token);
  stages_.back()->EndToken();
  return std::exchange(*out_, std::string());
}

std::string DecoderStream::Finish() {
  stages_.back()->Finish();
  return std::exchange(*out_, std::string());
}

}  // namespace baton::router
