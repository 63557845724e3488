// Reads the head of a GGUF file: metadata and the list of tensors. Private to
// common/gguf. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/gguf/gguf_file.h"

namespace baton::gguf {

class Parser final {
 public:
  // Fills `file`, which keeps views of `content`.
  Parser(absl::Span<const std::byte> content, GgufFile& file)
      : content_(content), file_(file) {}

  absl::Status Run();

 private:
  struct Place {
    uint64_t offset;  // in the data
    uint64_t bytes;
  };

  size_t remaining() const { return content_.size() - at_; }
  absl::Status Fail(absl::string_view what) const;

  // What comes next in the file; `what` is what it belongs to, for messages.
  absl::StatusOr<absl::Span<const std::byte>> Take(uint64_t size,
                                                   absl::string_view what);
  template <typename T>
  absl::StatusOr<T> Read(absl::string_view what);
  absl::StatusOr<absl::string_view> ReadString(absl::string_view what);
  absl::StatusOr<ValueType> ReadType(absl::string_view what);
  absl::StatusOr<Value> ReadValue(ValueType type, absl::string_view what);
  absl::StatusOr<Array> ReadArray(absl::string_view what, int depth);

  absl::Status ReadHeader();
  absl::Status ReadKeyAndValue();
  absl::Status RefuseParts();
  absl::Status ReadTensor();
  // Gives the tensors their bytes and sorts them.
  absl::Status PlaceTensors();

  const absl::Span<const std::byte> content_;
  GgufFile& file_;
  size_t at_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t num_values_ = 0;
  uint64_t num_elements_ = 0;  // of all arrays so far
  std::vector<Place> places_;  // by tensor, in the order of the file
};

}  // namespace baton::gguf
