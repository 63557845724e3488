// Reads one JSON value (RFC 8259), byte by byte, and says where it ends. Keeps
// nothing of it. One thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::router {

inline bool IsJsonSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Appends a byte of JSON that a scanner took, as JSON wants it: control
// characters in strings with their escapes. `in_string` is what the scanner
// said before it took the byte.
void AppendJsonByte(char c, bool in_string, std::string* out);

// Control characters in strings, which JSON wants escaped and models forget to
// escape, are allowed. Bytes from 0x80 on, too, whether they are UTF-8 or not.
class JsonScanner final {
 public:
  // Arrays and objects inside one another: more than grammars allow.
  static constexpr size_t kMaxDepth = 1024;

  enum class Step {
    kMore,  // the value goes on
    kLast,  // it ends with this byte
    kPast,  // it ended before this byte, as numbers do
    kBad,   // this byte cannot come here, or is nested too deeply
  };

  // The next byte; white space before the value is allowed. REQUIRES: kMore was
  // what came of the one before.
  Step Take(char c);

  // Whether the next byte is in a string.
  bool in_string() const {
    return state_ == State::kString || state_ == State::kEscape ||
           state_ == State::kHex;
  }

 private:
  enum class State : uint8_t {
    // Before these there may be white space.
    kValue,
    kFirstElement,  // a value, or the end of the array
    kFirstKey,      // a key, or the end of the object
    kKey,
    kColon,
    kAfterValue,  // a comma, or the end of what is open

    kString,
    kEscape,
    kHex,
    kLiteral,
    kMinus,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
  };

  Step BeginValue(char c);
  Step BeginString(bool key);
  Step TakeString(char c);
  Step TakeLiteral(char c);
  Step TakeNumber(char c);
  Step Open(char bracket, State next);
  Step Close();
  Step EndValue();
  Step Go(State state);

  State state_ = State::kValue;
  std::string open_;           // the brackets that are
  bool key_ = false;           // the string is one
  int hex_digits_ = 0;         // that the escape still wants
  absl::string_view literal_;  // what is still to come of it
};

}  // namespace baton::router
