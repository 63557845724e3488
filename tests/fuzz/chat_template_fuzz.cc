// A chat template, and the variables that it is given: JSON on the first line,
// the template behind it.
#include <string>

#include "absl/time/time.h"
#include "common/json.h"
#include "common/log.h"
#include "common/utf8.h"
#include "router/text/chat_template.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton::router {
namespace {

using Json = nlohmann::ordered_json;

// What fits of `json` into a rendering's input.
ChatInput InputOf(const Json& json) {
  ChatInput input;
  input.now = absl::UnixEpoch();
  input.messages = Json::array();
  if (json.is_array()) input.messages = json;
  if (!json.is_object()) return input;
  input.messages = json.value("messages", Json::array());
  input.tools = json.value("tools", Json());
  input.documents = json.value("documents", Json());
  input.arguments = json.value("arguments", Json());
  return input;
}

void Fuzz(const std::string& bytes) {
  const size_t line = bytes.find('\n');
  const std::string head = bytes.substr(0, line);
  const std::string source =
      line == std::string::npos ? "" : bytes.substr(line + 1);
  const Json json = Json::parse(head, /*cb=*/nullptr,
                                /*allow_exceptions=*/false);
  if (json.is_discarded()) return;
  const auto chat_template =
      ChatTemplate::Parse(source, {{"bos_token", "<s>"}});
  if (!chat_template.ok()) return;
  const ChatInput input = InputOf(json);
  const auto text = (*chat_template)->Render(input);
  if (!text.ok()) {
    CHECK(!text.status().message().empty());
    return;
  }
  CHECK(IsValidUtf8(*text));
}

}  // namespace
}  // namespace baton::router

FUZZ_TARGET(chat_template)(const uint8_t* data, size_t size) {
  // A parser that is not ours goes as deep as its input.
  if (size > 16384) return 0;
  baton::fuzz::FuzzInput input(data, size);
  baton::router::Fuzz(baton::fuzz::Exactly(input.Rest()));
  return 0;
}
