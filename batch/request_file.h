// A file of requests that may wait, one JSON object to a line, as OpenAI's
// Batch API takes it:
//
//   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
//    "body": {"messages": [...]}}
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::batch {

struct BatchRequest {
  int64_t line = 0;  // of the file, from 1
  std::string custom_id;
  std::string url;   // a path: "/v1/chat/completions"
  std::string body;  // JSON
};

// Bytes of a line: what a router takes of a body, and some for what is around
// it.
inline constexpr int64_t kMaxLineBytes = (16 << 20) + (64 << 10);
inline constexpr size_t kMaxCustomIdBytes = 512;

// One line, the `number`-th. InvalidArgument names the field, not the file.
absl::StatusOr<BatchRequest> ParseRequestLine(absl::string_view text,
                                              int64_t number);

class RequestFile final {
 public:
  // Reads all of it once, so that what is wrong in its last line is said before
  // its first is asked. InvalidArgument ("FILE:LINE: ...") for a line that is
  // no request, for a custom_id that another line has, and for a file that is
  // not one that can be read twice; NotFound when it cannot be opened.
  static absl::StatusOr<RequestFile> Open(const std::string& path);

  // The next one; nothing at the end. Lines without anything are passed over.
  // Errors as above: the file may have changed.
  absl::StatusOr<std::optional<BatchRequest>> Next();

  int64_t size() const { return size_; }
  bool Has(absl::string_view custom_id) const {
    return custom_ids_.contains(custom_id);
  }

 private:
  RequestFile(std::string path, std::ifstream in)
      : path_(std::move(path)), in_(std::move(in)) {}

  std::string path_;
  std::ifstream in_;
  int64_t line_ = 0;
  int64_t size_ = 0;  // requests
  absl::flat_hash_set<std::string> custom_ids_;
};

}  // namespace baton::batch
