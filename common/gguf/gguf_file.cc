#include "common/gguf/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_parser.h"
#include "common/gguf/gguf_value.h"
#include "common/status_macros.h"

namespace baton::gguf {
namespace {

constexpr absl::string_view kMagic = "GGUF";
constexpr size_t kMaxQuotedBytes = 80;

// The integer that `value` is, if it fits.
bool AsInteger(const Value& value, int64_t* out) {
  if (const auto* v = std::get_if<int64_t>(&value)) {
    *out = *v;
    return true;
  }
  const auto* v = std::get_if<uint64_t>(&value);
  if (v == nullptr ||
      *v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  *out = static_cast<int64_t>(*v);
  return true;
}

}  // namespace

std::string Quoted(absl::string_view name) {
  const bool cut = name.size() > kMaxQuotedBytes;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxQuotedBytes)),
                      cut ? "...\"" : "\"");
}

absl::StatusOr<std::shared_ptr<const GgufFile>> GgufFile::Open(
    const std::string& path) {
  BATON_ASSIGN_OR_RETURN(auto mapping, MappedFile::Open(path));
  std::shared_ptr<GgufFile> file(new GgufFile(path));
  file->mapping_ = std::move(mapping);
  BATON_RETURN_IF_ERROR(Parser(file->mapping_->bytes(), *file).Run());
  return file;
}

absl::StatusOr<std::shared_ptr<const GgufFile>> GgufFile::Parse(
    absl::Span<const std::byte> content, const std::string& path) {
  std::shared_ptr<GgufFile> file(new GgufFile(path));
  BATON_RETURN_IF_ERROR(Parser(content, *file).Run());
  return file;
}

const Value* GgufFile::FindValue(absl::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

absl::Status GgufFile::Invalid(absl::string_view key,
                               absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " ", what));
}

absl::StatusOr<const Value*> GgufFile::Required(absl::string_view key) const {
  const Value* const value = FindValue(key);
  if (value != nullptr) return value;
  return absl::NotFoundError(absl::StrCat(path_, ": ", key, " is missing"));
}

absl::StatusOr<const Array*> GgufFile::RequiredArray(
    absl::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* const value, Required(key));
  const auto* const array = std::get_if<Array>(value);
  if (array == nullptr) return Invalid(key, "is not an array");
  return array;
}

absl::StatusOr<int64_t> GgufFile::Integer(absl::string_view key, int64_t min,
                                          int64_t max) const {
  BATON_ASSIGN_OR_RETURN(const Value* const value, Required(key));
  int64_t number = 0;
  if (!AsInteger(*value, &number)) return Invalid(key, "is not an integer");
  if (number < min || number > max) {
    return Invalid(key, absl::StrCat("is ", number, ", it must be from ", min,
                                     " to ", max));
  }
  return number;
}

absl::StatusOr<int64_t> GgufFile::IntegerOr(absl::string_view key,
                                            int64_t fallback, int64_t min,
                                            int64_t max) const {
  if (!Has(key)) return fallback;
  return Integer(key, min, max);
}

absl::StatusOr<double> GgufFile::Number(absl::string_view key, double min,
                                        double max) const {
  BATON_ASSIGN_OR_RETURN(const Value* const value, Required(key));
  int64_t integer = 0;
  double number = 0;
  if (const auto* real = std::get_if<double>(value)) {
    number = *real;
  } else if (AsInteger(*value, &integer)) {
    number = static_cast<double>(integer);
  } else {
    return Invalid(key, "is not a number");
  }
  // Also false for NaN.
  if (number >= min && number <= max) return number;
  return Invalid(
      key, absl::StrCat("is ", number, ", it must be from ", min, " to ", max));
}

absl::StatusOr<bool> GgufFile::Bool(absl::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* const value, Required(key));
  if (const auto* v = std::get_if<bool>(value)) return *v;
  return Invalid(key, "is not true or false");
}

absl::StatusOr<absl::string_view> GgufFile::String(
    absl::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* const value, Required(key));
  if (const auto* v = std::get_if<absl::string_view>(value)) return *v;
  return Invalid(key, "is not a string");
}

absl::StatusOr<absl::Span<const absl::string_view>> GgufFile::Strings(
    absl::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Array* const array, RequiredArray(key));
  if (array->element_type != ValueType::kString) {
    return Invalid(key, "is not an array of strings");
  }
  return absl::MakeConstSpan(array->strings);
}

absl::StatusOr<std::vector<int64_t>> GgufFile::Integers(
    absl::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Array* const array, RequiredArray(key));
  const size_t size = FixedBytes(array->element_type);
  std::vector<int64_t> integers;
  integers.reserve(size == 0 ? 0 : array->count);
  for (uint64_t i = 0; i < array->count; ++i) {
    int64_t integer = 0;
    if (size == 0 || !AsInteger(FixedValue(array->element_type,
                                           array->bytes.subspan(i * size)),
                                &integer)) {
      return Invalid(key, "is not an array of integers");
    }
    integers.push_back(integer);
  }
  return integers;
}

absl::StatusOr<std::vector<float>> GgufFile::Floats(
    absl::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Array* const array, RequiredArray(key));
  if (array->element_type != ValueType::kFloat32) {
    return Invalid(key, "is not an array of float32");
  }
  std::vector<float> floats(array->count);
  if (array->count > 0) {
    std::memcpy(floats.data(), array->bytes.data(), array->bytes.size());
  }
  return floats;
}

const Tensor* GgufFile::FindTensor(absl::string_view name) const {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const Tensor& tensor, absl::string_view n) {
                         return tensor.name < n;
                       });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

bool IsGgufFile(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  char start[4] = {};
  file.read(start, sizeof(start));
  return file && absl::string_view(start, sizeof(start)) == kMagic;
}

}  // namespace baton::gguf
