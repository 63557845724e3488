// Tensors of a safetensors file, or of a model directory with one or many of
// them, mapped into memory and checked before anyone reads a byte.
//
// A file is an 8-byte little-endian header length, the header (JSON: name ->
// {dtype, shape, data_offsets}), and the tensors' bytes without holes
// (huggingface.co/docs/safetensors). Nothing in it is trusted: errors name the
// file and the tensor, and no input makes this code crash.
//
// Objects are constant after Open and may be read from any thread. Views point
// into the mapping and need the file (or set) alive. Nobody may shorten a file
// while it is mapped: reading beyond its end then ends the process (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/mapped_file.h"
#include "engine/dtype.h"

namespace baton::engine {

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // outermost first, row-major; empty: a scalar
  // The elements as stored, little-endian, perhaps not aligned to their size.
  absl::Span<const std::byte> bytes;
  // Path of the file that holds it, for messages. Owned by the file.
  absl::string_view file;

  int64_t num_elements() const {
    return static_cast<int64_t>(bytes.size()) / DTypeBytes(dtype);
  }
};

// "[32, 64]".
std::string ShapeString(absl::Span<const int64_t> shape);

// Checks the content of a whole file and lists its tensors, sorted by name.
// `path` is used in errors and in the views; both it and `content` must outlive
// the views.
absl::StatusOr<std::vector<TensorView>> ParseSafetensors(
    absl::Span<const std::byte> content, absl::string_view path);

class SafetensorsFile final {
 public:
  // Maps the file. NotFound, InvalidArgument (broken file) or Unimplemented
  // (an element type that Baton does not know).
  static absl::StatusOr<std::shared_ptr<const SafetensorsFile>> Open(
      const std::string& path);

  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return content_->path(); }
  // Sorted by name.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // Null when there is no such tensor.
  const TensorView* Find(absl::string_view name) const;
  // As MappedFile.
  void ReadAhead() const { content_->ReadAhead(); }

 private:
  SafetensorsFile() = default;

  std::unique_ptr<const MappedFile> content_;
  std::vector<TensorView> tensors_;
};

// All tensors of a model directory: DIR/model.safetensors, else the shards that
// DIR/model.safetensors.index.json names.
class SafetensorsSet final {
 public:
  // As SafetensorsFile::Open; NotFound also when the directory has neither, a
  // shard is missing, or a tensor of the index is missing in its shard.
  static absl::StatusOr<std::shared_ptr<const SafetensorsSet>> Open(
      const std::string& model_dir);

  SafetensorsSet(const SafetensorsSet&) = delete;
  SafetensorsSet& operator=(const SafetensorsSet&) = delete;

  // What the tensors were found through: the single file or the index.
  const std::string& source() const { return source_; }
  size_t num_tensors() const { return tensors_.size(); }
  // Null when there is no such tensor.
  const TensorView* Find(absl::string_view name) const;

 private:
  SafetensorsSet() = default;
  absl::Status OpenShards(const std::string& model_dir);

  std::string source_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  absl::flat_hash_map<std::string, const TensorView*> tensors_;
};

}  // namespace baton::engine
