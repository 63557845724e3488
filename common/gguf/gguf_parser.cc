#include "common/gguf/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_value.h"
#include "common/status_macros.h"

namespace baton::gguf {
namespace {

constexpr absl::string_view kFileMagic = "GGUF";
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint32_t kMaxDimensions = 4;
constexpr int kMaxArrayDepth = 4;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = 1 << 20;
// Far beyond any model. The size of the file is no bound: a file with holes
// says that it has any size, and its zeros are valid tensors and strings.
constexpr uint64_t kMaxTensors = 1 << 16;
constexpr uint64_t kMaxValues = 1 << 12;
constexpr uint64_t kMaxElements = 1 << 24;  // of all arrays together

}  // namespace

absl::Status Parser::Run() {
  BATON_RETURN_IF_ERROR(ReadHeader());
  for (uint64_t i = 0; i < num_values_; ++i) {
    BATON_RETURN_IF_ERROR(ReadKeyAndValue());
  }
  BATON_RETURN_IF_ERROR(RefuseParts());
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    BATON_RETURN_IF_ERROR(ReadTensor());
  }
  return PlaceTensors();
}

absl::Status Parser::Fail(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(file_.path_, ": ", what));
}

absl::StatusOr<absl::Span<const std::byte>> Parser::Take(
    uint64_t size, absl::string_view what) {
  if (size > remaining()) {
    return Fail(absl::StrCat(what, " at byte ", at_, " needs ", size,
                             " bytes, but the file has only ", remaining(),
                             " more: it is truncated or broken"));
  }
  at_ += size;
  return content_.subspan(at_ - size, size);
}

template <typename T>
absl::StatusOr<T> Parser::Read(absl::string_view what) {
  BATON_ASSIGN_OR_RETURN(const auto bytes, Take(sizeof(T), what));
  return LoadNumber<T>(bytes);
}

absl::StatusOr<absl::string_view> Parser::ReadString(absl::string_view what) {
  BATON_ASSIGN_OR_RETURN(const auto size, Read<uint64_t>(what));
  BATON_ASSIGN_OR_RETURN(const auto bytes, Take(size, what));
  return absl::string_view(reinterpret_cast<const char*>(bytes.data()),
                           bytes.size());
}

absl::Status Parser::ReadHeader() {
  BATON_ASSIGN_OR_RETURN(const auto magic,
                         Take(kFileMagic.size(), "the magic"));
  if (std::memcmp(magic.data(), kFileMagic.data(), kFileMagic.size()) != 0) {
    return Fail("does not begin with \"GGUF\": not a GGUF file");
  }
  BATON_ASSIGN_OR_RETURN(const auto version, Read<uint32_t>("the version"));
  if (version != 2 && version != 3) {
    const bool other_order = version != 0 && version % 65536 == 0;
    return absl::UnimplementedError(absl::StrCat(
        file_.path_, ": is of GGUF version ", version,
        other_order ? " (a big-endian file)" : "", "; Baton reads 2 and 3"));
  }
  BATON_ASSIGN_OR_RETURN(num_tensors_, Read<uint64_t>("the tensor count"));
  BATON_ASSIGN_OR_RETURN(num_values_, Read<uint64_t>("the metadata count"));
  if (num_tensors_ > kMaxTensors || num_values_ > kMaxValues) {
    return Fail(absl::StrCat("says that it has ", num_tensors_, " tensors and ",
                             num_values_, " metadata; Baton reads at most ",
                             kMaxTensors, " and ", kMaxValues));
  }
  return absl::OkStatus();
}

absl::StatusOr<ValueType> Parser::ReadType(absl::string_view what) {
  BATON_ASSIGN_OR_RETURN(const auto type, Read<uint32_t>(what));
  if (type > static_cast<uint32_t>(ValueType::kFloat64)) {
    return Fail(
        absl::StrCat(what, " is of type ", type, ", which is none of GGUF's"));
  }
  return static_cast<ValueType>(type);
}

absl::Status Parser::ReadKeyAndValue() {
  BATON_ASSIGN_OR_RETURN(const absl::string_view key,
                         ReadString("a metadata key"));
  if (key.size() > kMaxKeyBytes) {
    return Fail(absl::StrCat("metadata key ", Quoted(key), " has ", key.size(),
                             " bytes"));
  }
  const std::string what = absl::StrCat("metadata ", Quoted(key));
  BATON_ASSIGN_OR_RETURN(const ValueType type, ReadType(what));
  BATON_ASSIGN_OR_RETURN(Value value, ReadValue(type, what));
  if (!file_.values_.emplace(key, std::move(value)).second) {
    return Fail(absl::StrCat(what, " is there twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Parser::ReadValue(ValueType type,
                                        absl::string_view what) {
  if (type == ValueType::kString) {
    BATON_ASSIGN_OR_RETURN(const absl::string_view text, ReadString(what));
    return Value(text);
  }
  if (type == ValueType::kArray) {
    BATON_ASSIGN_OR_RETURN(Array array, ReadArray(what, 0));
    return Value(std::move(array));
  }
  BATON_ASSIGN_OR_RETURN(const auto bytes, Take(FixedBytes(type), what));
  return FixedValue(type, bytes);
}

absl::StatusOr<Array> Parser::ReadArray(absl::string_view what, int depth) {
  if (depth == kMaxArrayDepth) {
    return Fail(absl::StrCat(what, " nests arrays deeper than ", depth));
  }
  Array array;
  BATON_ASSIGN_OR_RETURN(array.element_type, ReadType(what));
  BATON_ASSIGN_OR_RETURN(array.count, Read<uint64_t>(what));
  const bool is_string = array.element_type == ValueType::kString;
  const size_t fixed = FixedBytes(array.element_type);
  // The least that an element takes: a length, or a type and a count.
  const size_t least = fixed > 0 ? fixed : is_string ? 8 : 12;
  if (array.count > remaining() / least) {
    return Fail(absl::StrCat(what, " has ", array.count,
                             " elements, more than fit into the rest of the "
                             "file: it is truncated or broken"));
  }
  if (array.count > kMaxElements - num_elements_) {
    return Fail(absl::StrCat(what, " has ", array.count,
                             " elements; Baton reads at most ", kMaxElements,
                             " in all arrays together"));
  }
  num_elements_ += array.count;
  if (fixed > 0) {
    BATON_ASSIGN_OR_RETURN(array.bytes, Take(array.count * fixed, what));
    return array;
  }
  for (uint64_t i = 0; i < array.count; ++i) {
    if (is_string) {
      BATON_ASSIGN_OR_RETURN(const absl::string_view text, ReadString(what));
      array.strings.push_back(text);
    } else {
      BATON_RETURN_IF_ERROR(ReadArray(what, depth + 1).status());
    }
  }
  return array;
}

absl::Status Parser::RefuseParts() {
  constexpr absl::string_view kKey = "split.count";
  if (!file_.Has(kKey)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(
      const int64_t parts,
      file_.Integer(kKey, 0, std::numeric_limits<int64_t>::max()));
  if (parts <= 1) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(file_.path_, ": ", kKey, " is ", parts,
                   "; Baton reads models of one file, so join the parts"));
}

absl::Status Parser::ReadTensor() {
  BATON_ASSIGN_OR_RETURN(const absl::string_view name,
                         ReadString("a tensor's name"));
  const std::string what = absl::StrCat("tensor ", Quoted(name));
  if (name.size() > kMaxKeyBytes) {
    return Fail(absl::StrCat(what, " has a name of ", name.size(), " bytes"));
  }
  BATON_ASSIGN_OR_RETURN(const auto dimensions, Read<uint32_t>(what));
  if (dimensions > kMaxDimensions) {
    return Fail(absl::StrCat(what, " has ", dimensions,
                             " dimensions, more than ", kMaxDimensions));
  }
  Tensor tensor;
  tensor.name = std::string(name);
  int64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    BATON_ASSIGN_OR_RETURN(const auto dimension, Read<int64_t>(what));
    if (dimension < 0 ||
        __builtin_mul_overflow(elements, dimension, &elements)) {
      return Fail(absl::StrCat(what, " has more than 2^63 elements"));
    }
    tensor.shape.insert(tensor.shape.begin(), dimension);
  }
  BATON_ASSIGN_OR_RETURN(tensor.type, Read<uint32_t>(what));
  const TensorTypeInfo* const type = FindTensorType(tensor.type);
  if (type == nullptr) {
    return absl::UnimplementedError(absl::StrCat(file_.path_, ": ", what,
                                                 " is of type ", tensor.type,
                                                 ", which Baton does not "
                                                 "know"));
  }
  const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  int64_t bytes = 0;
  if (columns % type->block_elements != 0 ||
      __builtin_mul_overflow(elements / type->block_elements, type->block_bytes,
                             &bytes)) {
    return Fail(absl::StrCat(what, " has rows of ", columns,
                             " elements, which cannot be ", type->name));
  }
  BATON_ASSIGN_OR_RETURN(const auto offset, Read<uint64_t>(what));
  places_.push_back({offset, static_cast<uint64_t>(bytes)});
  file_.tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status Parser::PlaceTensors() {
  constexpr absl::string_view kKey = "general.alignment";
  uint64_t alignment = kDefaultAlignment;
  if (file_.Has(kKey)) {
    BATON_ASSIGN_OR_RETURN(alignment, file_.Integer(kKey, 1, kMaxAlignment));
    if (!std::has_single_bit(alignment)) {
      return file_.Invalid(
          kKey, absl::StrCat("is ", alignment, ", it must be a power of two"));
    }
  }
  const size_t start = (at_ + alignment - 1) / alignment * alignment;
  const auto data = content_.subspan(std::min(start, content_.size()));
  for (size_t i = 0; i < places_.size(); ++i) {
    Tensor& tensor = file_.tensors_[i];
    const auto [offset, bytes] = places_[i];
    if (offset % alignment != 0) {
      return Fail(absl::StrCat("tensor ", Quoted(tensor.name),
                               " begins at byte ", offset,
                               " of the data, which is no multiple of the "
                               "alignment ",
                               alignment));
    }
    if (offset > data.size() || bytes > data.size() - offset) {
      return Fail(absl::StrCat("tensor ", Quoted(tensor.name), " has ", bytes,
                               " bytes from byte ", offset,
                               " of the data on, but the file has only ",
                               data.size(), ": it is truncated or broken"));
    }
    tensor.bytes = data.subspan(offset, bytes);
  }
  std::sort(file_.tensors_.begin(), file_.tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  for (size_t i = 1; i < file_.tensors_.size(); ++i) {
    const std::string& name = file_.tensors_[i].name;
    if (name == file_.tensors_[i - 1].name) {
      return Fail(absl::StrCat("tensor ", Quoted(name), " is there twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::gguf
