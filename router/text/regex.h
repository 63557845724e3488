// A compiled regular expression of a tokenizer.json file: PCRE2 with its JIT,
// made to find what Hugging Face's Oniguruma finds (regex_translation.h).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;

namespace baton::router {

// A byte range of a text, and whether it matched the pattern or lies between
// matches.
struct MatchSpan {
  size_t begin;
  size_t end;
  bool is_match;
};

// Immutable after Compile; any thread may search with it. A search is bounded:
// a pattern that backtracks too much on a text gives ResourceExhausted, never a
// hang.
class Regex final {
 public:
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);

  Regex(Regex&&) = default;
  Regex& operator=(Regex&&) = default;

  // Appends to `spans` the non-overlapping matches from left to right and the
  // text between them; together they cover `text`. An empty match appears as
  // an empty span, but not directly behind another match. REQUIRES: `text` is
  // valid UTF-8.
  absl::Status FindAll(absl::string_view text,
                       std::vector<MatchSpan>* spans) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct ContextDeleter {
    void operator()(pcre2_real_match_context_8* context) const;
  };
  using CodePtr = std::unique_ptr<pcre2_real_code_8, CodeDeleter>;
  using ContextPtr =
      std::unique_ptr<pcre2_real_match_context_8, ContextDeleter>;

  Regex(CodePtr code, ContextPtr limits)
      : code_(std::move(code)), limits_(std::move(limits)) {}

  CodePtr code_;
  ContextPtr limits_;
};

}  // namespace baton::router
