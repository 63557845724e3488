// Answers of a batch, one JSON object to a line, in the order in which they
// come, as OpenAI's Batch API gives them back:
//
//   {"id": "batch_req_1", "custom_id": "a",
//    "response": {"status_code": 200, "request_id": "...", "body": {...}},
//    "error": null}
//
// "response" is null when there was no answer at all; "error" then has a "code"
// and a "message".
//
// Not thread-safe.
#pragma once

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "batch/request_file.h"
#include "common/output_file.h"

namespace baton::batch {

// What became of a request.
struct BatchAnswer {
  // Of HTTP; 0: there was none, `error_code` and `error` say why.
  int status = 0;
  std::string request_id;
  std::string body;
  std::string error_code;
  std::string error;
};

// An answer whose body is no JSON becomes one that was none, with the code
// "invalid_answer"; others stay.
BatchAnswer CheckedAnswer(BatchAnswer answer);

// A line, with its end, of an answer that was checked.
std::string ResultLine(const BatchRequest& request, const BatchAnswer& answer);

class ResultFile final {
 public:
  // A new file, or one without anything. AlreadyExists when there is another:
  // nobody's answers are lost.
  static absl::StatusOr<ResultFile> Create(const std::string& path);

  // Goes on with a file, or begins one: answers with status 200 stay, all else
  // goes (failures, and a line that was cut short), by way of a file beside it
  // that takes its place. InvalidArgument ("FILE:LINE: ...") for a line in the
  // middle that is no result: it is another file.
  static absl::StatusOr<ResultFile> Resume(const std::string& path);

  // Whole, and at once. ResourceExhausted when the disk is full.
  absl::Status Write(absl::string_view line);
  // What was written is on the disk when it returns.
  absl::Status Finish();

  // Of requests that have been answered by an earlier run.
  const absl::flat_hash_set<std::string>& answered() const { return answered_; }

 private:
  explicit ResultFile(OutputFile file) : file_(std::move(file)) {}

  OutputFile file_;
  absl::flat_hash_set<std::string> answered_;
};

}  // namespace baton::batch
