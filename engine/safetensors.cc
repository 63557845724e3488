#include "engine/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "engine/json_fields.h"
#include "engine/json_file.h"

namespace baton::engine {
namespace {

using nlohmann::json;

// A tensor takes about 120 bytes of header, so this is some 250,000 of them.
constexpr int64_t kMaxHeaderBytes = int64_t{32} << 20;
constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxDimensions = 8;

constexpr std::array kDTypes = {
    DType::kBool, DType::kU8,  DType::kI8,  DType::kF8E5M2, DType::kF8E4M3,
    DType::kI16,  DType::kU16, DType::kF16, DType::kBf16,   DType::kI32,
    DType::kU32,  DType::kF32, DType::kI64, DType::kU64,    DType::kF64};

absl::Status Broken(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::Status BrokenTensor(absl::string_view path, absl::string_view tensor,
                          absl::string_view what) {
  return Broken(path, absl::StrCat("tensor ", tensor, ": ", what));
}

// Tensor names come from outside: fit for a message whatever is in them.
std::string Quoted(const std::string& name) { return JsonExcerpt(json(name)); }

// Where a tensor lies in the data that follow the header.
struct Extent {
  int64_t begin = 0;
  int64_t end = 0;
  size_t tensor = 0;  // index in the list
};

absl::StatusOr<DType> ReadDType(const json& entry, absl::string_view path,
                                const std::string& tensor) {
  const auto it = entry.find("dtype");
  if (it == entry.end() || !it->is_string()) {
    return BrokenTensor(path, tensor, "dtype is missing or not a string");
  }
  const std::string& name = it->get_ref<const std::string&>();
  for (DType dtype : kDTypes) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return absl::UnimplementedError(absl::StrCat(path, ": tensor ", tensor,
                                               ": dtype is ", JsonExcerpt(*it),
                                               ", which Baton does not know"));
}

absl::StatusOr<std::vector<int64_t>> ReadIntegers(const json& entry,
                                                  const char* field,
                                                  size_t max_count,
                                                  absl::string_view path,
                                                  const std::string& tensor) {
  const auto it = entry.find(field);
  if (it == entry.end() || !it->is_array() || it->size() > max_count) {
    return BrokenTensor(
        path, tensor,
        absl::StrCat(field, " is missing or not a list of at most ", max_count,
                     " integers"));
  }
  std::vector<int64_t> values;
  for (const json& element : *it) {
    int64_t value = 0;
    if (!JsonInt(element, 0, std::numeric_limits<int64_t>::max(), &value)) {
      return BrokenTensor(path, tensor,
                          absl::StrCat(field, " is ", JsonExcerpt(*it),
                                       ", it must hold integers from 0"));
    }
    values.push_back(value);
  }
  return values;
}

// Bytes of a tensor, none when that overflows.
std::optional<int64_t> ByteSize(DType dtype, absl::Span<const int64_t> shape) {
  int64_t bytes = DTypeBytes(dtype);
  for (int64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return bytes;
}

// Reads one entry of the header; `data` are the bytes after the header.
absl::StatusOr<Extent> ReadEntry(const json& entry, const std::string& tensor,
                                 absl::Span<const std::byte> data,
                                 absl::string_view path, TensorView& view) {
  if (!entry.is_object()) {
    return BrokenTensor(path, tensor, "its header entry is not an object");
  }
  BATON_ASSIGN_OR_RETURN(view.dtype, ReadDType(entry, path, tensor));
  BATON_ASSIGN_OR_RETURN(
      view.shape, ReadIntegers(entry, "shape", kMaxDimensions, path, tensor));
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets,
                         ReadIntegers(entry, "data_offsets", 2, path, tensor));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return BrokenTensor(path, tensor,
                        absl::StrCat("data_offsets are ", ShapeString(offsets),
                                     ", they must be a begin and an end"));
  }
  if (offsets[1] > static_cast<int64_t>(data.size())) {
    return BrokenTensor(
        path, tensor,
        absl::StrCat("ends at byte ", offsets[1],
                     " of the data, but the file "
                     "has only ",
                     data.size(), ": it is truncated or broken"));
  }
  const std::optional<int64_t> bytes = ByteSize(view.dtype, view.shape);
  if (bytes != offsets[1] - offsets[0]) {
    return BrokenTensor(
        path, tensor,
        absl::StrCat("shape ", ShapeString(view.shape), " of ",
                     DTypeName(view.dtype), " needs ",
                     bytes.has_value() ? absl::StrCat(*bytes)
                                       : std::string("more than 2^63"),
                     " bytes, data_offsets ", ShapeString(offsets), " hold ",
                     offsets[1] - offsets[0]));
  }
  view.file = path;
  view.bytes = data.subspan(offsets[0], offsets[1] - offsets[0]);
  return Extent{offsets[0], offsets[1], 0};
}

// The format wants the tensors to fill the data without hole or overlap.
absl::Status CheckExtents(std::vector<Extent> extents,
                          const std::vector<TensorView>& tensors,
                          size_t data_size, absl::string_view path) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  int64_t filled = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    const std::string name = Quoted(tensors[extents[i].tensor].name);
    if (extents[i].begin < filled) {
      return BrokenTensor(
          path, name,
          absl::StrCat("overlaps tensor ",
                       Quoted(tensors[extents[i - 1].tensor].name)));
    }
    if (extents[i].begin > filled) {
      return BrokenTensor(path, name,
                          absl::StrCat("begins at byte ", extents[i].begin,
                                       " of the data, but the bytes from ",
                                       filled, " on belong to no tensor"));
    }
    filled = extents[i].end;
  }
  if (filled != static_cast<int64_t>(data_size)) {
    return Broken(path,
                  absl::StrCat("the tensors end at byte ", filled,
                               " of the data, but the file has ", data_size));
  }
  return absl::OkStatus();
}

// Length of the header, checked against the file.
absl::StatusOr<size_t> ReadHeaderLength(absl::Span<const std::byte> content,
                                        absl::string_view path) {
  if (content.size() < kLengthBytes) {
    return Broken(path, absl::StrCat("has ", content.size(),
                                     " bytes, too few for a safetensors file"));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(content[i]) << (8 * i);
  }
  if (length > content.size() - kLengthBytes) {
    return Broken(path,
                  absl::StrCat("says that its header has ", length,
                               " bytes, but the file has only ", content.size(),
                               ": truncated, or not a "
                               "safetensors file"));
  }
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return Broken(path, absl::StrCat("has a header of ", length,
                                     " bytes, more than ", kMaxHeaderBytes));
  }
  return static_cast<size_t>(length);
}

// A name that stays in its directory.
bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(absl::string_view("/\\\0", 3)) ==
             absl::string_view::npos;
}

}  // namespace

std::string ShapeString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::vector<TensorView>> ParseSafetensors(
    absl::Span<const std::byte> content, absl::string_view path) {
  BATON_ASSIGN_OR_RETURN(const size_t header_length,
                         ReadHeaderLength(content, path));
  const absl::string_view header_text(
      reinterpret_cast<const char*>(content.data()) + kLengthBytes,
      header_length);
  const absl::Span<const std::byte> data =
      content.subspan(kLengthBytes + header_length);
  BATON_ASSIGN_OR_RETURN(
      const json header,
      ParseJsonObject(header_text, absl::StrCat(path, ": header")));
  std::vector<TensorView> tensors;
  std::vector<Extent> extents;
  // nlohmann_json keeps the keys sorted.
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) {
        return Broken(path, "header: __metadata__ is not an object");
      }
      continue;
    }
    TensorView view;
    view.name = name;
    BATON_ASSIGN_OR_RETURN(Extent extent,
                           ReadEntry(entry, Quoted(name), data, path, view));
    extent.tensor = tensors.size();
    extents.push_back(extent);
    tensors.push_back(std::move(view));
  }
  BATON_RETURN_IF_ERROR(
      CheckExtents(std::move(extents), tensors, data.size(), path));
  return tensors;
}

absl::StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  BATON_ASSIGN_OR_RETURN(file->content_, MappedFile::Open(path));
  BATON_ASSIGN_OR_RETURN(
      file->tensors_,
      ParseSafetensors(file->content_->bytes(), file->content_->path()));
  return file;
}

const TensorView* SafetensorsFile::Find(absl::string_view name) const {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorView& tensor, absl::string_view n) {
                         return tensor.name < n;
                       });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

absl::StatusOr<std::shared_ptr<const SafetensorsSet>> SafetensorsSet::Open(
    const std::string& model_dir) {
  std::shared_ptr<SafetensorsSet> set(new SafetensorsSet);
  const std::string single = absl::StrCat(model_dir, "/model.safetensors");
  const std::string index = absl::StrCat(single, ".index.json");
  std::error_code error;
  if (std::filesystem::exists(single, error)) {
    set->source_ = single;
    BATON_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(single));
    for (const TensorView& tensor : file->tensors()) {
      set->tensors_.emplace(tensor.name, &tensor);
    }
    set->files_.push_back(std::move(file));
    return set;
  }
  if (!std::filesystem::exists(index, error)) {
    return absl::NotFoundError(
        absl::StrCat(model_dir,
                     ": neither model.safetensors nor "
                     "model.safetensors.index.json is there"));
  }
  set->source_ = index;
  BATON_RETURN_IF_ERROR(set->OpenShards(model_dir));
  return set;
}

absl::Status SafetensorsSet::OpenShards(const std::string& model_dir) {
  BATON_ASSIGN_OR_RETURN(const json index,
                         ReadJsonObject(source_, kMaxHeaderBytes));
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object()) {
    return Broken(source_, "weight_map is missing or not an object");
  }
  absl::flat_hash_map<std::string, std::shared_ptr<const SafetensorsFile>>
      shards;
  for (const auto& [name, value] : weight_map->items()) {
    if (!value.is_string() ||
        !IsPlainFileName(value.get_ref<const std::string&>())) {
      return BrokenTensor(source_, Quoted(name),
                          absl::StrCat("its shard is ", JsonExcerpt(value),
                                       ", it must be the name of a file in "
                                       "the same directory"));
    }
    const std::string& shard = value.get_ref<const std::string&>();
    auto it = shards.find(shard);
    if (it == shards.end()) {
      const std::string path = absl::StrCat(model_dir, "/", shard);
      std::error_code error;
      if (!std::filesystem::exists(path, error)) {
        return absl::NotFoundError(absl::StrCat(source_, ": tensor ",
                                                Quoted(name), ": its shard ",
                                                path, " does not exist"));
      }
      BATON_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
      it = shards.emplace(shard, file).first;
      files_.push_back(std::move(file));
    }
    const TensorView* tensor = it->second->Find(name);
    if (tensor == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(source_, ": tensor ", Quoted(name),
                       " is not in its shard ", it->second->path()));
    }
    tensors_.emplace(name, tensor);
  }
  return absl::OkStatus();
}

const TensorView* SafetensorsSet::Find(absl::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

}  // namespace baton::engine
