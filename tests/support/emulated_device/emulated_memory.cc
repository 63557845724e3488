// The devices of the emulated runtime, and memory of theirs and of the host.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "engine/cuda/device_runtime.h"
#include "tests/support/emulated_device/emulated_runtime.h"
#include "tests/support/emulated_device/runtime_state.h"

namespace baton::engine::cuda {
namespace {

using emulated::runtime_mu;

constexpr int32_t kDevices = 4;
constexpr int64_t kDeviceBytes = int64_t{1} << 30;
constexpr size_t kAlignment = 256;

int64_t taken_bytes[kDevices];
absl::Duration patience;
int waits_for_peers = 0;
int pinned_allocations = -1;  // that will succeed; negative: all
bool reaches[kDevices][kDevices];
thread_local int32_t device = 0;

// Which device some memory belongs to.
std::map<const std::byte*, int32_t>& Owners() {
  static auto* const owners = new std::map<const std::byte*, int32_t>;
  return *owners;
}

std::byte* Take(int64_t bytes) {
  const size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* memory = static_cast<std::byte*>(
      std::aligned_alloc(kAlignment, std::max(padded, kAlignment)));
  CHECK(memory != nullptr);
  // Nobody may count on zeros.
  std::memset(memory, 0xff, padded);
#if defined(__SANITIZE_ADDRESS__)
  // Nor on what was not asked for.
  __asan_poison_memory_region(memory + bytes, padded - bytes);
#endif
  return memory;
}

// CUDA may wait for all devices when memory is taken or given back: that never
// ends where one waits for the thread that asks.
void CheckNobodyWaits() {
  // A condition may be looked at by any thread that holds the lock.
  const auto somebody_waits = [mine = device] {
    return emulated::IsWaitedFor(mine);
  };
  absl::MutexLock lock(&runtime_mu);
  CHECK(
      !runtime_mu.AwaitWithTimeout(absl::Condition(&somebody_waits), patience))
      << "memory is taken or given back while a device waits for this one";
  CHECK_LE(waits_for_peers, 0)
      << "memory is taken or given back while a device waits for a peer";
}

}  // namespace

namespace emulated {

int32_t CurrentDevice() { return device; }

void SetPatience(absl::Duration wanted) {
  absl::MutexLock lock(&runtime_mu);
  patience = wanted;
}

void AddWaitsForPeers(int change) {
  absl::MutexLock lock(&runtime_mu);
  waits_for_peers += change;
}

void SetPinnedAllocations(int count) {
  absl::MutexLock lock(&runtime_mu);
  pinned_allocations = count;
}

void TakeBytes(int32_t device, int64_t bytes) {
  absl::MutexLock lock(&runtime_mu);
  taken_bytes[device] += bytes;
}

bool Reaches(int32_t from, int32_t to) {
  absl::MutexLock lock(&runtime_mu);
  return from == to || reaches[from][to];
}

}  // namespace emulated

absl::StatusOr<DeviceProperties> OpenDevice(int32_t index) {
  if (index < 0 || index >= kDevices) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device ", index, ": there are ", kDevices, " emulated ones"));
  }
  device = index;
  DeviceProperties properties;
  properties.name = "emulated on the CPU";
  properties.architecture = 90;
  properties.group_products = true;
  properties.clusters = true;
  properties.multiprocessors = 4;
  properties.shared_bytes_per_block = 227 << 10;
  properties.l2_bytes = 1 << 20;
  properties.total_bytes = kDeviceBytes;
  return properties;
}

void UseDevice(int32_t index) { device = index; }

absl::Status ReachMemoryOf(int32_t from, int32_t to, const std::string&) {
  CHECK(from >= 0 && from < kDevices && to >= 0 && to < kDevices);
  absl::MutexLock lock(&runtime_mu);
  reaches[from][to] = true;
  return absl::OkStatus();
}

int64_t FreeDeviceBytes() {
  absl::MutexLock lock(&runtime_mu);
  return kDeviceBytes - taken_bytes[device];
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(
    int64_t bytes, const std::string& purpose) {
  if (bytes > FreeDeviceBytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(purpose, ": ", bytes, " bytes of device memory"));
  }
  CheckNobodyWaits();
  DeviceBuffer buffer;
  buffer.data_ = Take(bytes);
  buffer.bytes_ = bytes;
  absl::MutexLock lock(&runtime_mu);
  taken_bytes[device] += bytes;
  Owners()[buffer.data_] = device;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  CheckNobodyWaits();
  absl::MutexLock lock(&runtime_mu);
  taken_bytes[Owners().extract(data_).mapped()] -= bytes_;
  std::free(data_);
}
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

absl::StatusOr<PinnedBuffer> PinnedBuffer::Allocate(
    int64_t bytes, const std::string& purpose) {
  CheckNobodyWaits();
  {
    absl::MutexLock lock(&runtime_mu);
    if (pinned_allocations == 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat(purpose, ": ", bytes, " bytes of pinned memory"));
    }
    if (pinned_allocations > 0) --pinned_allocations;
  }
  PinnedBuffer buffer;
  buffer.data_ = Take(bytes);
  buffer.bytes_ = bytes;
  return buffer;
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) CheckNobodyWaits();
  std::free(data_);
}
PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

absl::StatusOr<PinnedMemory> PinnedMemory::Pin(absl::Span<std::byte> memory,
                                               const std::string&) {
  PinnedMemory pinned;
  pinned.host_ = pinned.device_ = memory.data();
  return pinned;
}
PinnedMemory::~PinnedMemory() = default;
PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : host_(std::exchange(other.host_, nullptr)),
      device_(std::exchange(other.device_, nullptr)) {}
PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(host_, other.host_);
  std::swap(device_, other.device_);
  return *this;
}

}  // namespace baton::engine::cuda
