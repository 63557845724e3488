// Ends a streamed text before the first stop string, and never shows the
// beginning of one.
//
// Pure; one per request, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::router {

// Finds the stop string that is complete first; of those that become complete
// with the same byte, the longest. The result does not depend on how the text
// was cut into pieces. Each byte costs time in proportion to the number of stop
// strings, whatever they are (Knuth, Morris and Pratt 1977).
//
// What might be the beginning of a stop string is held back until it is certain
// that it is not. Pieces stay valid UTF-8 when the text's pieces and the stop
// strings are.
class StopMatcher final {
 public:
  // REQUIRES: no stop string is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // What can be shown of the text so far and was not yet. Nothing once
  // stopped().
  std::string Push(absl::string_view text);

  // The text is over: what was held back.
  std::string Finish();

  bool stopped() const { return matched_ != kNone; }
  // REQUIRES: stopped().
  const std::string& stop() const { return stops_[matched_].text; }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  struct Stop {
    std::string text;
    // failure[i]: the length of the longest proper prefix of `text` that is a
    // suffix of its first i + 1 bytes.
    std::vector<uint32_t> failure;
    // How many bytes of `text` the seen text ends with.
    uint32_t matched = 0;
  };

  static void Advance(Stop* stop, char c);

  std::vector<Stop> stops_;
  size_t matched_ = kNone;
  std::string held_;
};

}  // namespace baton::router
