#include "tests/support/gguf_writer.h"

#include "absl/strings/str_cat.h"

namespace baton::test {

std::string StringBytes(absl::string_view text) {
  return absl::StrCat(NumberBytes<uint64_t>(text.size()), text);
}

void GgufWriter::AddRaw(absl::string_view key, uint32_t type,
                        absl::string_view bytes) {
  absl::StrAppend(&values_, StringBytes(key), NumberBytes(type), bytes);
  ++num_values_;
}

void GgufWriter::AddUint32(absl::string_view key, uint32_t value) {
  AddRaw(key, 4, NumberBytes(value));
}

void GgufWriter::AddFloat(absl::string_view key, float value) {
  AddRaw(key, 6, NumberBytes(value));
}

void GgufWriter::AddBool(absl::string_view key, bool value) {
  AddRaw(key, 7, NumberBytes<uint8_t>(value ? 1 : 0));
}

void GgufWriter::AddString(absl::string_view key, absl::string_view value) {
  AddRaw(key, 8, StringBytes(value));
}

void GgufWriter::AddStrings(absl::string_view key,
                            absl::Span<const std::string> values) {
  std::string bytes = NumberBytes<uint32_t>(8);
  absl::StrAppend(&bytes, NumberBytes<uint64_t>(values.size()));
  for (const std::string& value : values) {
    absl::StrAppend(&bytes, StringBytes(value));
  }
  AddRaw(key, 9, bytes);
}

void GgufWriter::AddInts(absl::string_view key,
                         absl::Span<const int32_t> values) {
  std::string bytes = NumberBytes<uint32_t>(5);
  absl::StrAppend(&bytes, NumberBytes<uint64_t>(values.size()));
  for (const int32_t value : values) {
    absl::StrAppend(&bytes, NumberBytes(value));
  }
  AddRaw(key, 9, bytes);
}

void GgufWriter::AddFloats(absl::string_view key,
                           absl::Span<const float> values) {
  std::string bytes = NumberBytes<uint32_t>(6);
  absl::StrAppend(&bytes, NumberBytes<uint64_t>(values.size()));
  for (const float value : values) absl::StrAppend(&bytes, NumberBytes(value));
  AddRaw(key, 9, bytes);
}

void GgufWriter::AddTensor(absl::string_view name, uint32_t type,
                           absl::Span<const int64_t> shape,
                           absl::string_view bytes) {
  absl::StrAppend(&tensors_, StringBytes(name),
                  NumberBytes<uint32_t>(shape.size()));
  for (size_t i = shape.size(); i > 0; --i) {
    absl::StrAppend(&tensors_, NumberBytes(shape[i - 1]));
  }
  absl::StrAppend(&tensors_, NumberBytes(type),
                  NumberBytes<uint64_t>(data_.size()));
  absl::StrAppend(&data_, bytes);
  data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
  ++num_tensors_;
}

std::string GgufWriter::Finish() const {
  std::string file =
      absl::StrCat("GGUF", NumberBytes(version_), NumberBytes(num_tensors_),
                   NumberBytes(num_values_), values_, tensors_);
  file.resize((file.size() + alignment_ - 1) / alignment_ * alignment_);
  return file + data_;
}

}  // namespace baton::test
