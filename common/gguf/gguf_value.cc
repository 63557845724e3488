#include "common/gguf/gguf_value.h"

namespace baton::gguf {

size_t FixedBytes(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
      return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32:
      return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64:
      return 8;
    case ValueType::kString:
    case ValueType::kArray:
      break;
  }
  return 0;
}

Value FixedValue(ValueType type, absl::Span<const std::byte> bytes) {
  switch (type) {
    case ValueType::kUint8:
      return uint64_t{LoadNumber<uint8_t>(bytes)};
    case ValueType::kInt8:
      return int64_t{LoadNumber<int8_t>(bytes)};
    case ValueType::kUint16:
      return uint64_t{LoadNumber<uint16_t>(bytes)};
    case ValueType::kInt16:
      return int64_t{LoadNumber<int16_t>(bytes)};
    case ValueType::kUint32:
      return uint64_t{LoadNumber<uint32_t>(bytes)};
    case ValueType::kInt32:
      return int64_t{LoadNumber<int32_t>(bytes)};
    case ValueType::kFloat32:
      return double{LoadNumber<float>(bytes)};
    case ValueType::kBool:
      return LoadNumber<uint8_t>(bytes) != 0;
    case ValueType::kInt64:
      return LoadNumber<int64_t>(bytes);
    case ValueType::kFloat64:
      return LoadNumber<double>(bytes);
    default:
      return LoadNumber<uint64_t>(bytes);
  }
}

}  // namespace baton::gguf
