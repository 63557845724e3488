// The arrays of a step on their way to the device: written on the host one
// after another, copied in one piece. Places depend only on the sizes reserved
// before, so that a recorded graph finds its arrays where they were. The host
// has two such pieces, which take turns: one may be written while the copy of
// the step before has yet to run.
//
// Used by the engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/log.h"
#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda {

// An array of a step, here and there.
template <typename T>
struct Uploaded {
  absl::Span<T> host;
  T* device = nullptr;
};

class StepUpload final {
 public:
  // Begins a step. What was reserved before is lost.
  // REQUIRES: the copies of steps before the last one are done.
  void Clear() {
    used_ = 0;
    turn_ = 1 - turn_;
  }

  // Whether Reserve finds room for this many more bytes, each array padded to
  // kAlignment.
  bool Fits(int64_t bytes) const { return used_ + bytes <= device_.bytes(); }

  // Makes room for `bytes` in all; arrays and graphs that name the memory
  // before are void. REQUIRES: nothing is reserved, the device is idle.
  absl::Status Grow(int64_t bytes) {
    CHECK_EQ(used_, 0);
    for (PinnedBuffer& side : pinned_) {
      auto pinned = PinnedBuffer::Allocate(bytes, "a step's arrays");
      if (!pinned.ok()) return pinned.status();
      side = *std::move(pinned);
    }
    auto device = DeviceBuffer::Allocate(bytes, "a step's arrays");
    if (!device.ok()) return device.status();
    device_ = *std::move(device);
    return absl::OkStatus();
  }
  int64_t capacity() const { return device_.bytes(); }
  // Where the first array lies on the device.
  std::byte* device() const { return device_.data(); }

  template <typename T>
  Uploaded<T> Reserve(int64_t count) {
    const int64_t bytes = Padded(count * static_cast<int64_t>(sizeof(T)));
    CHECK(Fits(bytes)) << used_ << " + " << bytes;
    Uploaded<T> array;
    array.host = absl::MakeSpan(
        reinterpret_cast<T*>(pinned_[turn_].data() + used_), count);
    array.device = reinterpret_cast<T*>(device_.data() + used_);
    used_ += bytes;
    return array;
  }

  // All arrays.
  void Copy(Stream& stream) {
    stream.CopyToDevice(device_.data(), pinned_[turn_].data(), used_);
  }

  static constexpr int64_t kAlignment = 256;
  static int64_t Padded(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  std::array<PinnedBuffer, 2> pinned_;
  int turn_ = 0;
  DeviceBuffer device_;
  int64_t used_ = 0;
};

}  // namespace baton::engine::cuda
