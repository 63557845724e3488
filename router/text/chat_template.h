// A model's own chat template (Jinja), rendered byte for byte as Hugging Face's
// `apply_chat_template` renders it: in a sandbox, and with bounds on its work,
// memory and output. What the template calls and what a client sends can make a
// rendering fail, never crash, hang or grow without end.
//
// What a template sees: messages, tools, documents (each None where there is
// none), add_generation_prompt, tool_choice (where there is one), the model's
// special tokens by name (bos_token, ...) and what `arguments` holds.
//
// Differences that are known: integers end at 128 bits, floats have no
// attributes, and `lipsum`, `random`, `pprint`, `striptags`, `urlize`,
// `wordwrap`, `xmlattr`, `filesizeformat` and tags that need other templates
// are not there.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/json.h"

namespace baton::router {

class Tokenizer;

struct ChatInput {
  // An array of objects, as in a request.
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;        // null: none
  nlohmann::ordered_json documents;    // null: none
  nlohmann::ordered_json tool_choice;  // null: not a variable
  // An object with further variables ("enable_thinking"), or null. They may
  // take the place of every other one but `messages`.
  nlohmann::ordered_json arguments;
  bool add_generation_prompt = true;
  absl::Time now;  // what strftime_now shows, in the local time zone
};

// Immutable; all functions may be called from any thread.
class ChatTemplate final {
 public:
  // `special_tokens` is an object: {"bos_token": "<s>", ...}.
  //
  // InvalidArgument "chat template: line N: ..." for a source that is no
  // template; Unimplemented for tags that need other templates.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(
      absl::string_view source, const nlohmann::ordered_json& special_tokens);

  // The same with another template, `tool_use`, for messages with tools.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(
      absl::string_view source, absl::string_view tool_use,
      const nlohmann::ordered_json& special_tokens);

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // The prompt's text. Encode it without adding special tokens: they are in it.
  //
  // A template that never looks into a message's content (see
  // takes_content_parts) is given FlattenTextParts(messages); any other gets
  // the messages as they are.
  //
  // InvalidArgument "chat template: <message>" where the template refuses the
  // messages (raise_exception), and "chat template: line N: ..." for other
  // errors; ResourceExhausted where a bound is reached.
  absl::StatusOr<std::string> Render(const ChatInput& input) const;

  // Whether the template runs over the parts of a message's content. The rule
  // is that of vLLM's content format detection: there is a loop over a
  // `content`, or over a variable that was set to one.
  bool takes_content_parts() const;

 private:
  struct Source;

  ChatTemplate(std::unique_ptr<const Source> source,
               std::unique_ptr<const Source> tool_use,
               nlohmann::ordered_json special_tokens);

  // The one for messages with these tools.
  const Source& For(const nlohmann::ordered_json& tools) const;

  const std::unique_ptr<const Source> default_;
  const std::unique_ptr<const Source> tool_use_;  // may be null
  const nlohmann::ordered_json special_tokens_;
};

// `messages` where each content that is a list of text parts only ({"type":
// "text", "text": ...}, or plain strings) became one string, its parts joined
// by line ends as vLLM joins them. Other contents stay as they are. Any thread.
nlohmann::ordered_json FlattenTextParts(nlohmann::ordered_json messages);

// The template that came with the tokenizer. NotFound where there is none.
absl::StatusOr<std::unique_ptr<ChatTemplate>> LoadChatTemplate(
    const Tokenizer& tokenizer);

}  // namespace baton::router
