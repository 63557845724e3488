// Writes an answer as OpenAI's Responses API has it: a response with items
// (what the model thought, what it says, what it calls), as one JSON body or as
// a stream of typed events. What the events add up to is what the body says.
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
#include "baton/v1/inference.pb.h"
#include "router/http/openai_writer.h"

namespace baton::router::http {

class ResponsesWriter final {
 public:
  using Logprobs = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;

  // `echoed_fields` as ApiRequest has them.
  ResponsesWriter(const AnswerHead& head, std::string echoed_fields);

  // Each appends events to `out`, unless it is null. The first and the last
  // ones of a stream are Begin's, and Finish's or Fail's.
  void Begin(std::string* out);
  void Reasoning(absl::string_view text, std::string* out);
  void Text(absl::string_view text, const Logprobs& logprobs, std::string* out);
  // The model calls the function `name`.
  void CallBegun(absl::string_view call_id, absl::string_view name,
                 std::string* out);
  // More of that call's arguments.
  void CallArguments(absl::string_view text, std::string* out);
  // `cut`: the last call is not whole.
  void Finish(v1::FinishReason reason, bool cut, const AnswerUsage& usage,
              std::string* out);
  void Fail(const absl::Status& error, std::string* out);

  // The response, once Finish was called.
  std::string Body() const { return Json(); }

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
