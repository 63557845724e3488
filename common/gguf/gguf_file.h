// A GGUF file: metadata and tensors of one model, mapped into memory and
// checked before anyone reads a byte. Versions 2 and 3, little-endian
// (github.com/ggml-org/ggml, docs/gguf.md). What the metadata mean is the
// reader's affair: the engine and the router each read their own part.
//
// Nothing in the file is trusted: errors name the file and the key or tensor,
// and no input makes this code crash.
//
// Constant after Open and readable from any thread. Views point into the
// mapping and need the file alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/gguf/gguf_tensor_type.h"
#include "common/mapped_file.h"

namespace baton::gguf {

// By their numbers in the file.
enum class ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct Array {
  ValueType element_type = ValueType::kUint8;
  uint64_t count = 0;
  // The elements as stored; empty for strings and arrays.
  absl::Span<const std::byte> bytes;
  std::vector<absl::string_view> strings;
};

// An array of arrays is checked, and its elements are not kept.
using Value =
    std::variant<uint64_t, int64_t, double, bool, absl::string_view, Array>;

struct Tensor {
  std::string name;
  uint32_t type = 0;           // FindTensorType(type) is not null
  std::vector<int64_t> shape;  // outermost first: the file's order turned round
  absl::Span<const std::byte> bytes;
};

// A name from a file, quoted and fit for a message.
std::string Quoted(absl::string_view name);

class GgufFile final {
 public:
  // Maps the file. NotFound, InvalidArgument (broken, or no GGUF file) or
  // Unimplemented (a version, an element type or a split file that Baton does
  // not know).
  static absl::StatusOr<std::shared_ptr<const GgufFile>> Open(
      const std::string& path);

  // The same from bytes, which must outlive the result; `path` is for
  // messages.
  static absl::StatusOr<std::shared_ptr<const GgufFile>> Parse(
      absl::Span<const std::byte> content, const std::string& path);

  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }

  bool Has(absl::string_view key) const { return FindValue(key) != nullptr; }
  // Null when there is no such key.
  const Value* FindValue(absl::string_view key) const;

  // The value of a key that must be there (NotFound), have that kind, and be in
  // [min, max] (InvalidArgument). Integers of all widths are one kind.
  absl::StatusOr<int64_t> Integer(absl::string_view key, int64_t min,
                                  int64_t max) const;
  // The same of a key that need not be there.
  absl::StatusOr<int64_t> IntegerOr(absl::string_view key, int64_t fallback,
                                    int64_t min, int64_t max) const;
  absl::StatusOr<double> Number(absl::string_view key, double min,
                                double max) const;
  absl::StatusOr<bool> Bool(absl::string_view key) const;
  absl::StatusOr<absl::string_view> String(absl::string_view key) const;
  absl::StatusOr<absl::Span<const absl::string_view>> Strings(
      absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(absl::string_view key) const;

  // Sorted by name.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Null when there is no such tensor.
  const Tensor* FindTensor(absl::string_view name) const;

  // InvalidArgument: "PATH: KEY WHAT".
  absl::Status Invalid(absl::string_view key, absl::string_view what) const;

 private:
  friend class Parser;

  explicit GgufFile(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<const Value*> Required(absl::string_view key) const;
  absl::StatusOr<const Array*> RequiredArray(absl::string_view key) const;

  const std::string path_;
  std::unique_ptr<const MappedFile> mapping_;  // null after Parse
  absl::flat_hash_map<std::string, Value> values_;
  std::vector<Tensor> tensors_;
};

// Whether there is a file at `path` that begins as a GGUF file does.
bool IsGgufFile(const std::string& path);

}  // namespace baton::gguf
