// Memory for matrices: aligned to cache lines, in large pages where the kernel
// gives them. Not thread-safe; owned by one object.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "common/log.h"

namespace baton::engine::cpu {

// Grows, never shrinks. T is trivial; new memory is zero.
template <typename T>
class AlignedBuffer final {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size) { Reserve(size); }
  ~AlignedBuffer() { std::free(data_); }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }

  // Makes room for `size` values. When that takes new memory, the old content
  // is lost.
  void Reserve(int64_t size) {
    if (size <= size_) return;
    std::free(data_);
    size_ = 0;
    const size_t bytes = static_cast<size_t>(size) * sizeof(T);
    const size_t alignment = bytes >= kLargePage ? kLargePage : kCacheLine;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_ = static_cast<T*>(std::aligned_alloc(alignment, rounded));
    CHECK(data_ != nullptr) << "out of memory: " << rounded << " bytes";
    if (alignment == kLargePage) madvise(data_, rounded, MADV_HUGEPAGE);
    std::fill_n(data_, size, T{});
    size_ = size;
  }

 private:
  static constexpr size_t kCacheLine = 64;
  static constexpr size_t kLargePage = size_t{2} << 20;

  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace baton::engine::cpu
