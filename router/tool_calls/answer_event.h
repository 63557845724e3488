// A piece of what a model wrote in one answer of a conversation, told apart.
// Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace baton::router {

struct AnswerEvent {
  enum class Kind : uint8_t {
    kReasoning,  // `text` is the next piece of what it thinks; never empty
    kContent,    // of what it says; never empty
    kCallBegun,  // it calls the tool `text`
    kArguments,  // the next piece of that call's arguments; never empty
  };

  Kind kind;
  size_t call = 0;  // which one, from 0; of the last two kinds
  std::string text;

  friend bool operator==(const AnswerEvent&, const AnswerEvent&) = default;
};

}  // namespace baton::router
