// A stream and arrays in the device's memory, for programs that take kernels'
// times. One thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/log.h"
#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda {

class GpuArrays {
 protected:
  // Of 0.0115 each, as bfloat16 or float; or of other bytes.
  DeviceBuffer Take(int64_t bytes, int fill = 0x3c) {
    auto buffer = DeviceBuffer::Allocate(bytes, "a benchmark's array");
    CHECK(buffer.ok()) << buffer.status();
    stream_.Fill(buffer->data(), fill, bytes);
    return *std::move(buffer);
  }
  // With these values.
  template <typename T>
  DeviceBuffer Put(const std::vector<T>& values) {
    DeviceBuffer buffer = Take(static_cast<int64_t>(values.size() * sizeof(T)));
    stream_.CopyToDevice(buffer.data(), values.data(), buffer.bytes());
    stream_.Wait();
    return buffer;
  }

  Stream stream_;
};

}  // namespace baton::engine::cuda
