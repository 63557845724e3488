#include "tests/router/tool_calls/pushed_answer.h"

#include <ostream>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "common/utf8.h"

namespace baton::router {
namespace {

using Kind = ToolCallEvent::Kind;

// Checks the order of the events that come to it, and joins them.
class EventLog final {
 public:
  void Add(const std::vector<ToolCallEvent>& events) {
    for (const ToolCallEvent& event : events) Add(event);
  }

  std::vector<ToolCallEvent> Finish() {
    EXPECT_FALSE(open_);
    return std::move(events_);
  }
  size_t calls() const { return calls_; }

 private:
  void Add(const ToolCallEvent& event) {
    switch (event.kind) {
      case Kind::kContent:
        EXPECT_FALSE(open_);
        EXPECT_FALSE(event.text.empty());
        EXPECT_EQ(event.call, 0);
        break;
      case Kind::kBegun:
        EXPECT_FALSE(open_);
        EXPECT_FALSE(event.text.empty());
        EXPECT_EQ(event.call, calls_);
        open_ = true;
        ++calls_;
        break;
      case Kind::kArguments:
        EXPECT_TRUE(open_);
        EXPECT_FALSE(event.text.empty());
        EXPECT_EQ(event.call + 1, calls_);
        break;
      case Kind::kEnded:
        EXPECT_TRUE(open_);
        EXPECT_EQ(event.text, "");
        EXPECT_EQ(event.call + 1, calls_);
        open_ = false;
        break;
    }
    if ((event.kind == Kind::kContent || event.kind == Kind::kArguments) &&
        !events_.empty() && events_.back().kind == event.kind) {
      events_.back().text += event.text;
    } else {
      events_.push_back(event);
    }
  }

  bool open_ = false;
  size_t calls_ = 0;
  std::vector<ToolCallEvent> events_;
};

}  // namespace

std::vector<ToolCallEvent> PushPieces(ToolCallFormat format,
                                      const std::vector<std::string>& names,
                                      const std::vector<std::string>& pieces) {
  ToolCallStream stream(format, names);
  EventLog log;
  for (const std::string& piece : pieces) {
    const std::vector<ToolCallEvent> events = stream.Push(piece);
    if (IsValidUtf8(piece)) {
      for (const ToolCallEvent& event : events) {
        EXPECT_TRUE(IsValidUtf8(event.text)) << absl::CEscape(event.text);
      }
    }
    log.Add(events);
  }
  log.Add(stream.Finish());
  EXPECT_EQ(stream.calls(), log.calls());
  return log.Finish();
}

std::vector<ToolCallEvent> PushAnswer(ToolCallFormat format,
                                      absl::string_view text,
                                      const std::vector<std::string>& names) {
  const std::string all(text);
  const std::vector<ToolCallEvent> events = PushPieces(format, names, {all});
  for (size_t at = 1; at < all.size(); ++at) {
    EXPECT_EQ(PushPieces(format, names, {all.substr(0, at), all.substr(at)}),
              events)
        << "cut at " << at;
  }
  std::vector<std::string> bytes;
  for (const char c : all) bytes.emplace_back(1, c);
  EXPECT_EQ(PushPieces(format, names, bytes), events);
  return events;
}

ToolCallEvent ContentEvent(std::string text) {
  return {Kind::kContent, 0, std::move(text)};
}

std::vector<ToolCallEvent> CallEvents(size_t call, std::string name,
                                      std::string arguments) {
  return {{Kind::kBegun, call, std::move(name)},
          {Kind::kArguments, call, std::move(arguments)},
          {Kind::kEnded, call, ""}};
}

std::vector<ToolCallEvent> JoinEvents(
    std::vector<std::vector<ToolCallEvent>> parts) {
  std::vector<ToolCallEvent> all;
  for (const std::vector<ToolCallEvent>& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void PrintTo(const ToolCallEvent& event, std::ostream* out) {
  switch (event.kind) {
    case Kind::kContent:
      *out << "content";
      break;
    case Kind::kBegun:
      *out << event.call << " begun";
      break;
    case Kind::kArguments:
      *out << event.call << " arguments";
      break;
    case Kind::kEnded:
      *out << event.call << " ended";
      break;
  }
  *out << " \"" << absl::CEscape(event.text) << "\"";
}

}  // namespace baton::router
