// Tool calls in what a model writes: however the text is cut, the events say
// the same in order, and nothing is lost where no call was found. The first
// byte says how the model writes them, the second how the text is cut.
#include <string>
#include <vector>

#include "common/log.h"
#include "router/tool_calls/tool_call_format.h"
#include "router/tool_calls/tool_call_stream.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton::router {
namespace {

struct Said {
  std::string content;
  // A name, a line break, the arguments.
  std::vector<std::string> calls;
  bool operator==(const Said&) const = default;
};

void Add(std::vector<ToolCallEvent> events, bool* open, Said* said) {
  for (const ToolCallEvent& event : events) {
    switch (event.kind) {
      case ToolCallEvent::Kind::kContent:
        CHECK(!*open && !event.text.empty());
        said->content += event.text;
        break;
      case ToolCallEvent::Kind::kBegun:
        CHECK(!*open);
        CHECK_EQ(event.call, said->calls.size());
        *open = true;
        said->calls.push_back(event.text + "\n");
        break;
      case ToolCallEvent::Kind::kArguments:
        CHECK(*open && !event.text.empty());
        said->calls.back() += event.text;
        break;
      case ToolCallEvent::Kind::kEnded:
        CHECK(*open);
        *open = false;
        break;
    }
  }
}

// In pieces of so many bytes.
Said Listen(ToolCallFormat format, const std::vector<std::string>& names,
            absl::string_view text, size_t piece) {
  ToolCallStream stream(format, names);
  Said said;
  bool open = false;
  for (size_t at = 0; at < text.size(); at += piece) {
    Add(stream.Push(text.substr(at, piece)), &open, &said);
  }
  Add(stream.Finish(), &open, &said);
  CHECK(!open);
  CHECK_EQ(stream.calls(), said.calls.size());
  CHECK_LE(said.calls.size(), ToolCallStream::kMaxCalls);
  return said;
}

}  // namespace
}  // namespace baton::router

FUZZ_TARGET(tool_calls)(const uint8_t* data, size_t size) {
  using baton::router::ToolCallFormat;
  baton::fuzz::FuzzInput input(data, size);
  constexpr ToolCallFormat kFormats[] = {
      ToolCallFormat::kHermes,      ToolCallFormat::kLlamaJson,
      ToolCallFormat::kMistral,     ToolCallFormat::kGlm,
      ToolCallFormat::kQwenCoder,   ToolCallFormat::kDeepseek,
      ToolCallFormat::kDeepseekV31, ToolCallFormat::kKimi};
  const uint8_t kind = input.Below(16);
  const ToolCallFormat format = kFormats[kind % 8];
  std::vector<std::string> names;
  if (kind >= 8) names = {"f", "g"};
  const size_t piece = 1u + input.Below(9);
  const std::string text = baton::fuzz::Exactly(input.Rest());
  const auto said = baton::router::Listen(format, names, text, text.size() + 1);
  CHECK(said == baton::router::Listen(format, names, text, piece));
  if (said.calls.empty()) CHECK_EQ(said.content, text);
  // What a template says of itself may be anything.
  (void)baton::router::FindToolCallFormat(text);
  return 0;
}
