// Messages of Harmony in what a model writes: however the text is cut, the
// events say the same in order. The first byte says where the prompt ends, the
// second how the text is cut.
#include <string>
#include <vector>

#include "common/log.h"
#include "router/harmony/harmony_format.h"
#include "router/harmony/harmony_stream.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton::router {
namespace {

// In pieces of so many bytes; events that continue each other are one.
std::vector<AnswerEvent> Listen(absl::string_view opening,
                                absl::string_view text, size_t piece) {
  HarmonyStream stream(opening, {"f", "g"});
  std::vector<AnswerEvent> all;
  size_t calls = 0;
  const auto add = [&](std::vector<AnswerEvent> events) {
    for (AnswerEvent& event : events) {
      CHECK(!event.text.empty());
      if (event.kind == AnswerEvent::Kind::kCallBegun) {
        CHECK_EQ(event.call, calls);
        ++calls;
      } else if (event.kind == AnswerEvent::Kind::kArguments) {
        CHECK_EQ(event.call + 1, calls);
      }
      if (!all.empty() && all.back().kind == event.kind &&
          event.kind != AnswerEvent::Kind::kCallBegun) {
        all.back().text += event.text;
      } else {
        all.push_back(std::move(event));
      }
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    add(stream.Push(text.substr(at, piece)));
  }
  add(stream.Finish());
  CHECK_EQ(stream.calls(), calls);
  return all;
}

}  // namespace
}  // namespace baton::router

FUZZ_TARGET(harmony)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  constexpr const char* kOpenings[] = {
      "assistant", "", "assistant<|channel|>analysis<|message|>",
      "assistant to=functions.f<|channel|>commentary<|message|>"};
  const std::string opening = kOpenings[input.Below(4)];
  const size_t piece = 1u + input.Below(9);
  const std::string text = baton::fuzz::Exactly(input.Rest());
  CHECK(baton::router::Listen(opening, text, text.size() + 1) ==
        baton::router::Listen(opening, text, piece));
  // What a prompt has begun may be anything.
  (void)baton::router::Listen(baton::router::HarmonyOpening(text), text, piece);
  return 0;
}
