#include "tests/support/gguf_writer.h"

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::test {

std::string StringBytes(absl::string_view text) {
  return absl::StrCat(NumberBytes<uint64_t>(text.size()), text);
}

void GgufWriter::AddRaw(absl::string_view key, uint32_t type,
                        absl::string_view bytes) {
  values_[std::string(key)] = absl::StrCat(NumberBytes(type), bytes);
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
  tensors_[std::string(name)] = {
      type, {shape.begin(), shape.end()}, std::string(bytes)};
}

void GgufWriter::Remove(absl::string_view name) {
  const std::string key(name);
  CHECK_EQ(values_.erase(key) + tensors_.erase(key), 1u) << key;
}

std::string GgufWriter::Finish() const {
  const auto pad = [this](std::string& text) {
    text.resize((text.size() + alignment_ - 1) / alignment_ * alignment_);
  };
  std::string file = absl::StrCat("GGUF", NumberBytes(version_),
                                  NumberBytes<uint64_t>(tensors_.size()),
                                  NumberBytes<uint64_t>(values_.size()));
  for (const auto& [key, value] : values_) {
    absl::StrAppend(&file, StringBytes(key), value);
  }
  std::string data;
  for (const auto& [name, tensor] : tensors_) {
    absl::StrAppend(&file, StringBytes(name),
                    NumberBytes<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i > 0; --i) {
      absl::StrAppend(&file, NumberBytes(tensor.shape[i - 1]));
    }
    absl::StrAppend(&file, NumberBytes(tensor.type),
                    NumberBytes<uint64_t>(data.size()));
    absl::StrAppend(&data, tensor.bytes);
    pad(data);
  }
  pad(file);
  return file + data;
}

}  // namespace baton::test
