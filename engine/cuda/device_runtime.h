// What the host asks of a device: memory, copies, streams, events and graphs.
// The seam below everything of the CUDA backend that is not a kernel: CUDA's
// runtime stands behind it, and in tests a device that the CPU plays, so that
// the whole backend runs where there is no GPU.
//
// Work of a stream runs in order; nothing here waits for a device unless it
// says so. Objects are used by one thread at a time. A call that fails where
// only a bug or a broken device can make it fail ends the process (CHECK), with
// CUDA's own message: after such an error nothing that the device holds can be
// trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::engine::cuda {

struct DeviceProperties {
  std::string name;
  // Compute capability, 90 for 9.0.
  int32_t architecture = 0;
  // It has tensor cores that work for groups of warps (wgmma), and the build
  // has kernels for them (matmul_group.cuh, attention_group.cuh).
  bool group_products = false;
  // Its blocks may run in clusters that read each other's memory, and its
  // kernels begin before those before them end.
  bool clusters = false;
  int32_t multiprocessors = 0;
  int64_t shared_bytes_per_block = 0;  // at most, when asked for
  int64_t l2_bytes = 0;
  int64_t total_bytes = 0;
};

// Selects device `index` for the calling thread and says what it is.
// FailedPrecondition, with the reason, where there is no such device or no
// driver for it.
absl::StatusOr<DeviceProperties> OpenDevice(int32_t index);

// Selects the device again: for a thread other than the one that opened it.
void UseDevice(int32_t index);

// Lets kernels of device `from` read and write all memory of device `to`.
// FailedPrecondition, naming `purpose`, where they have no way to it. The same
// device: nothing to do.
absl::Status ReachMemoryOf(int32_t from, int32_t to,
                           const std::string& purpose);

// Bytes of the device's memory that nobody has taken.
int64_t FreeDeviceBytes();

// Memory of the device, aligned to 256 bytes at least. Move-only.
class DeviceBuffer final {
 public:
  DeviceBuffer() = default;
  // ResourceExhausted, naming `purpose`. The content is undefined.
  static absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes,
                                               const std::string& purpose);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  // Null when nothing was allocated.
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Memory of the host that a device copies from and to without help. Move-only.
class PinnedBuffer final {
 public:
  PinnedBuffer() = default;
  static absl::StatusOr<PinnedBuffer> Allocate(int64_t bytes,
                                               const std::string& purpose);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // As kernels name it.
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Memory that somebody else allocated, pinned while this lives, so that kernels
// may read and write it. Move-only; the memory outlives it.
class PinnedMemory final {
 public:
  PinnedMemory() = default;
  // ResourceExhausted, naming `purpose`. REQUIRES: whole pages of memory.
  static absl::StatusOr<PinnedMemory> Pin(absl::Span<std::byte> memory,
                                          const std::string& purpose);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;

  // The same bytes as kernels name them.
  std::byte* device() const { return device_; }

 private:
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
};

// Opaque: CUDA's own handles.
struct StreamHandle;
struct EventHandle;
struct GraphHandle;

// A point of a stream.
class Event final {
 public:
  // With `timed`, for MillisecondsSince.
  explicit Event(bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  EventHandle* handle() const { return handle_; }
  // Blocks until what was recorded is done.
  void Wait() const;
  // Whether it is. REQUIRES: recorded.
  bool Done() const;
  // REQUIRES: both timed, recorded and done.
  double MillisecondsSince(const Event& earlier) const;

 private:
  EventHandle* handle_ = nullptr;
};

// Recorded work that is launched as one. Move-only; empty at first.
class Graph final {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  bool empty() const { return handle_ == nullptr; }

 private:
  friend class Stream;
  GraphHandle* handle_ = nullptr;
};

class Stream final {
 public:
  // An urgent one's kernels get the multiprocessors that others leave, before
  // what waits of these.
  explicit Stream(bool urgent = false);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle* handle() const { return handle_; }

  // Whether kernels that are given from now on may begin, up to where they call
  // AwaitEarlierKernels, before the kernel that was given before them ends. Not
  // at first. REQUIRES: DeviceProperties::clusters, to switch it on.
  void SetEarlyKernels(bool early);
  // Asks of kernels that are given from now on that multiprocessors lend blocks
  // as much of their memory as they have, and the first cache what is left, so
  // that a kernel whose blocks need much may begin beside one whose need
  // little. Not at first; a hint. No-op before CUDA 12.6.
  void SetMostBlockMemory(bool most);

  // Host memory is pinned, or the call may wait.
  void CopyToDevice(void* device, const void* host, int64_t bytes);
  void CopyToHost(void* host, const void* device, int64_t bytes);
  void CopyOnDevice(void* to, const void* from, int64_t bytes);
  // Sets bytes.
  void Fill(void* device, int value, int64_t bytes);

  void Record(const Event& event);
  // What comes next runs after what was recorded, on whichever stream.
  void WaitFor(const Event& event);
  // Has a thread of the runtime's call `what`, which gives no work to devices,
  // once the work so far is done. Later work waits for its end.
  void Call(std::function<void()> what);
  // Blocks until all work is done.
  void Wait();

  // What is given to the stream in between is recorded and not run.
  void BeginGraph();
  // Empty where the device has no memory for it.
  Graph EndGraph();
  // REQUIRES: !graph.empty().
  void Launch(const Graph& graph);

 private:
  StreamHandle* handle_ = nullptr;
};

}  // namespace baton::engine::cuda
