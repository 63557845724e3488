// Numbers to and from bytes, little-endian and without padding, as everything
// that two workers say to each other is written. Any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

class ByteWriter final {
 public:
  template <typename T>
  void Put(T value) {
    using U = std::make_unsigned_t<T>;
    U bits = static_cast<U>(value);
    for (size_t i = 0; i < sizeof(T); ++i) {
      out_.push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
    }
  }
  template <typename E>
  void PutEnum(E value) {
    Put(static_cast<std::underlying_type_t<E>>(value));
  }
  void PutBytes(absl::string_view bytes) {
    out_.append(bytes.data(), bytes.size());
  }
  std::string Take() && { return std::move(out_); }

 private:
  std::string out_;
};

// Reads past the end give zeros and make ok() false.
class ByteReader final {
 public:
  explicit ByteReader(ByteSpan bytes) : rest_(bytes) {}

  template <typename T>
  T Get() {
    if (rest_.size() < sizeof(T)) {
      ok_ = false;
      rest_ = {};
      return T{};
    }
    using U = std::make_unsigned_t<T>;
    U value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<U>(static_cast<U>(rest_[i]) << (8 * i));
    }
    rest_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }
  template <typename E>
  E GetEnum() {
    return static_cast<E>(Get<std::underlying_type_t<E>>());
  }
  // The next `n` bytes.
  ByteSpan GetBytes(size_t n) {
    if (rest_.size() < n) {
      ok_ = false;
      rest_ = {};
    }
    const ByteSpan bytes = rest_.first(std::min(n, rest_.size()));
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  ByteSpan rest() const { return rest_; }
  bool ok() const { return ok_; }
  bool Finished() const { return ok_ && rest_.empty(); }

 private:
  ByteSpan rest_;
  bool ok_ = true;
};

}  // namespace baton::kv_transfer
