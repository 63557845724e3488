// Writes an answer as OpenAI's Responses API has it: a response with items.
//
// Plain values; one call at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/http/answer_items.h"
#include "router/http/openai_writer.h"

namespace baton::router::http {

class ResponsesWriter final : public AnswerItems {
 public:
  // `echoed_fields` as ApiRequest has them.
  ResponsesWriter(const AnswerHead& head, std::string echoed_fields);

  void Begin(int64_t prompt_tokens, std::string* out) override;
  void Reasoning(absl::string_view text, std::string* out) override;
  void Text(absl::string_view text, const Logprobs& logprobs,
            std::string* out) override;
  void CallBegun(absl::string_view call_id, absl::string_view name,
                 std::string* out) override;
  void CallArguments(absl::string_view text, std::string* out) override;
  void Finish(const AnswerEnd& end, std::string* out) override;
  void Fail(const absl::Status& error, std::string* out) override;

  std::string Body() const override { return Json(); }

 private:
  enum class Kind : uint8_t { kReasoning, kMessage, kCall };
  struct Item {
    Kind kind = Kind::kMessage;
    std::string id;
    std::string text;      // or arguments
    std::string logprobs;  // JSON, of a message: the elements of an array
    std::string call_id;
    std::string name;
    const char* status = "in_progress";
  };

  // The open item, if it is of this kind, or a new one.
  Item& Open(Kind kind, std::string* out);
  void Close(const char* status, std::string* out);
  Item& Add(Item item, std::string* out);

  std::string NewId(const char* prefix) const;
  // An event up to where its own fields begin, and its end.
  void BeginEvent(absl::string_view type, std::string* out);
  static void EndEvent(std::string* out);
  // The same with the fields that say of which item, and of which part.
  void BeginItemEvent(absl::string_view type, std::string* out);
  void BeginPartEvent(absl::string_view type, std::string* out);
  void ResponseEvent(absl::string_view type, std::string* out);

  static std::string PartJson(const Item& item);
  static std::string ItemJson(const Item& item);
  std::string Json() const;

  const AnswerHead head_;
  const std::string echoed_fields_;
  int64_t sequence_number_ = 0;
  std::vector<Item> items_;
  bool open_ = false;  // the last item
  const char* status_ = "in_progress";
  std::string error_;  // JSON; empty: none
  std::optional<AnswerUsage> usage_;
};

}  // namespace baton::router::http
