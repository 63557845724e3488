#include "router/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/new_characters.h"
#include "router/text/regex_translation.h"

namespace baton::router {
namespace {

// Per match attempt. Real patterns stay below a few steps per character of one
// match; ten million are a fraction of a second.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKibibytes = 64 * 1024;

std::string ErrorText(int error) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(error, buffer, sizeof(buffer)) < 0) {
    return absl::StrCat("PCRE2 error ", error);
  }
  return reinterpret_cast<const char*>(buffer);
}

// Whether PCRE2's tables are older than what new_characters.h stands for.
bool UnicodeIsOld() {
  constexpr int kUnicodeOfNewCharacters = 16;
  static const bool is_old = [] {
    char version[64] = "";
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    return std::atoi(version) < kUnicodeOfNewCharacters;
  }();
  return is_old;
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

struct CompileContextDeleter {
  void operator()(pcre2_compile_context* context) const {
    pcre2_compile_context_free(context);
  }
};

}  // namespace

void Regex::CodeDeleter::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

void Regex::ContextDeleter::operator()(
    pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  BATON_ASSIGN_OR_RETURN(const std::string translated,
                         TranslateOniguruma(pattern));
  const std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(
      pcre2_compile_context_create(nullptr));
  CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  CodePtr code(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
      &offset, context.get()));
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the regular expression does not compile: ", ErrorText(error), " (at ",
        offset, " of ", translated, ")"));
  }
  // Where there is no JIT (or no memory may be made executable), PCRE2 matches
  // with its interpreter instead.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  ContextPtr limits(pcre2_match_context_create(nullptr));
  CHECK(limits != nullptr);
  pcre2_set_match_limit(limits.get(), kMatchLimit);
  pcre2_set_heap_limit(limits.get(), kHeapLimitKibibytes);
  return Regex(std::move(code), std::move(limits));
}

absl::Status Regex::FindAll(absl::string_view text,
                            std::vector<MatchSpan>* spans) const {
  std::optional<std::string> known;
  if (UnicodeIsOld()) known = SubstituteNewCharacters(text);
  if (known.has_value()) text = *known;
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  CHECK(data != nullptr);
  const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(data.get());
  size_t covered = 0;  // spans reach up to here
  size_t from = 0;     // the next search starts here
  bool after_match = false;
  while (from <= text.size()) {
    // The caller vouches for UTF-8; checking again for each search would make
    // this quadratic.
    const auto search = [&](uint32_t options) {
      return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                         text.size(), from, PCRE2_NO_UTF_CHECK | options,
                         data.get(), limits_.get());
    };
    int result = search(0);
    // The JIT's small stack ran out: the interpreter uses the heap.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = search(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "matching a regular expression of the tokenizer failed: ",
          ErrorText(result)));
    }
    const size_t begin = found[0];
    const size_t end = found[1];
    if (begin > end || begin < covered) {
      return absl::InvalidArgumentError(
          "a regular expression of the tokenizer matches backwards");
    }
    if (begin == end && after_match && begin == covered) {
      if (from == text.size()) break;
      from += NextUtf8(text, from).size;
      after_match = false;
      continue;
    }
    if (covered < begin) spans->push_back({covered, begin, false});
    spans->push_back({begin, end, true});
    covered = end;
    from = end;
    after_match = true;
  }
  if (covered < text.size()) spans->push_back({covered, text.size(), false});
  return absl::OkStatus();
}

}  // namespace baton::router
