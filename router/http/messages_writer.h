// Writes an answer as Anthropic's Messages API has it: a message with blocks.
//
// Plain values; one call at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/http/answer_items.h"
#include "router/http/http_message.h"
#include "router/http/openai_writer.h"

namespace baton::router::http {

class MessagesWriter final : public AnswerItems {
 public:
  explicit MessagesWriter(const AnswerHead& head);

  void Begin(int64_t prompt_tokens, std::string* out) override;
  void Reasoning(absl::string_view text, std::string* out) override;
  // Messages have no log-probabilities.
  void Text(absl::string_view text, const Logprobs& logprobs,
            std::string* out) override;
  void CallBegun(absl::string_view call_id, absl::string_view name,
                 std::string* out) override;
  void CallArguments(absl::string_view text, std::string* out) override;
  void Finish(const AnswerEnd& end, std::string* out) override;
  void Fail(const absl::Status& error, std::string* out) override;

  std::string Body() const override { return Json(); }

 private:
  enum class Kind : uint8_t { kThinking, kText, kToolUse };
  struct Block {
    Kind kind = Kind::kText;
    std::string text;  // or the input, JSON as the model wrote it
    std::string call_id;
    std::string name;
  };

  // The open block, if it is of this kind, or a new one.
  Block& Open(Kind kind, std::string* out);
  Block& Add(Block block, std::string* out);
  void Close(std::string* out);
  // A piece of the open block.
  void Delta(absl::string_view type, absl::string_view field,
             absl::string_view text, std::string* out) const;

  static std::string BlockJson(const Block& block);
  std::string Json() const;

  const AnswerHead head_;
  std::vector<Block> blocks_;
  bool open_ = false;  // the last block
  std::string stop_ =
      "null,\"stop_sequence\":null";  // JSON, from the reason on
  AnswerUsage usage_;
};

// The answer with an error of the OpenAI API, as clients of this one read it;
// the status and headers stay.
Response AsMessagesError(Response openai);

}  // namespace baton::router::http
