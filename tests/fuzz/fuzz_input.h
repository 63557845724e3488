// The bytes that a fuzz target is given, taken apart. Past the end there are
// only zeros. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::fuzz {

class FuzzInput final {
 public:
  FuzzInput(const uint8_t* data, size_t size)
      : data_(reinterpret_cast<const char*>(data)), size_(size) {}

  bool empty() const { return at_ == size_; }

  uint8_t Byte() {
    return at_ < size_ ? static_cast<uint8_t>(data_[at_++]) : 0;
  }
  // A number below `limit`, of one byte.
  uint8_t Below(uint8_t limit) { return Byte() % limit; }
  bool Bool() { return Byte() % 2 == 1; }
  // Little-endian.
  template <typename T>
  T Number() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{Byte()} << (8 * i);
    return static_cast<T>(value);
  }
  // The next bytes, at most `size`.
  absl::string_view Take(size_t size) {
    const size_t n = std::min(size, size_ - at_);
    const absl::string_view bytes(data_ + at_, n);
    at_ += n;
    return bytes;
  }
  absl::string_view Rest() { return Take(size_ - at_); }

 private:
  const char* const data_;
  const size_t size_;
  size_t at_ = 0;
};

inline absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// A copy on the heap of exactly that size, so that the sanitizers see a read
// past the end.
inline std::string Exactly(absl::string_view text) {
  std::string copy(text);
  copy.shrink_to_fit();
  return copy;
}

}  // namespace baton::fuzz
