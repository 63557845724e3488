// The "decoder" of tokenizer.json: from token strings back to text. Written
// once, as a stream: decoding a whole sequence is streaming it to the end, so
// the two cannot differ.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/json_node.h"
#include "router/text/text_pattern.h"

namespace baton::router {

class DecoderStage;

// What the file says: a chain of steps. Immutable; any thread. Outlives the
// streams made from it.
class Decoder final {
 public:
  // No decoder: tokens joined by spaces, as Hugging Face does.
  Decoder() = default;

  // ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or a Sequence of
  // those. Unimplemented for others.
  static absl::StatusOr<Decoder> FromJson(const JsonNode& node);

  // The bytes that `token` contributes where it stands in the middle of a
  // text: without Strip, and not made valid UTF-8.
  std::string TokenBytes(absl::string_view token) const;

 private:
  friend class DecoderStream;

  struct ByteLevelStep {};
  struct ByteFallbackStep {};
  struct FuseStep {};
  struct ReplaceStep {
    std::shared_ptr<const TextPattern> pattern;
    std::string content;
  };
  struct StripStep {
    std::string content;  // one character
    int64_t start;        // most that are removed at the start of a token
    int64_t stop;         // and at its end
  };
  struct MetaspaceStep {
    std::string replacement;  // one character
    bool drops_first;         // those of the first token vanish
  };
  using Step = std::variant<ByteLevelStep, ByteFallbackStep, FuseStep,
                            ReplaceStep, StripStep, MetaspaceStep>;

  absl::Status Add(const JsonNode& node);

  bool joins_with_spaces_ = true;
  std::vector<Step> steps_;
};

// The decoding of one sequence. One thread at a time.
class DecoderStream final {
 public:
  // `decoder` outlives the stream.
  explicit DecoderStream(const Decoder& decoder);
  DecoderStream(DecoderStream&&);
  DecoderStream& operator=(DecoderStream&&);
  ~DecoderStream();

  // Takes the next token and returns the text that is certain now: whole
  // characters, valid UTF-8.
  std::string Push(absl::string_view token);

  // Returns the rest. Call once, last.
  std::string Finish();

 private:
  std::unique_ptr<std::string> out_;  // the last stage writes here
  std::vector<std::unique_ptr<DecoderStage>> stages_;
};

}  // namespace baton::router
