// From what a client wants its answer to be to the grammar that workers keep it
// to. The last ones are kept: clients ask for the same again and again.
//
// Any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.pb.h"
#include "router/reasoning/reasoning_start.h"
#include "router/tool_calls/tool_call_format.h"
#include "scheduling/grammar.h"

namespace baton::router {

// InvalidArgument, also for what is not known here, and for a format that no
// answer has, or only the empty one. Its message reads as what follows the name
// of a field.
// `calls`: how the model writes tool calls; none: it is not known. `reasoning`:
// what it may think before, if the format allows that (its `reasoning`).
absl::StatusOr<std::shared_ptr<const scheduling::Grammar>> MakeGrammar(
    const v1::ResponseFormat& format,
    std::optional<ToolCallFormat> calls = std::nullopt,
    ReasoningStart reasoning = ReasoningStart::kNone);

// "json_object", "json_schema", "regex", "choice" or "tool_choice".
const char* FormatName(const v1::ResponseFormat& format);

class ResponseGrammars final {
 public:
  // Formats that are kept, of at most so many bytes each.
  static constexpr size_t kMaxKept = 64;
  static constexpr size_t kMaxKeptBytes = 64 * 1024;

  // As MakeGrammar; of one model, so that `calls` is always the same.
  absl::StatusOr<std::shared_ptr<const scheduling::Grammar>> Get(
      const v1::ResponseFormat& format, std::optional<ToolCallFormat> calls,
      ReasoningStart reasoning = ReasoningStart::kNone)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Kept {
    std::string format;  // as it came
    ReasoningStart reasoning;
    std::shared_ptr<const scheduling::Grammar> grammar;
  };

  absl::Mutex mu_;
  std::deque<Kept> kept_ ABSL_GUARDED_BY(mu_);  // the last one used first
};

}  // namespace baton::router
