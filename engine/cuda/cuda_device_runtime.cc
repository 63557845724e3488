// The device runtime over CUDA's own.
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include <utility>

#include "absl/base/const_init.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/target/stream_handle.h"

namespace baton::engine::cuda {
namespace {

void Check(cudaError_t error, const char* call) {
  CHECK_EQ(error, cudaSuccess)
      << "CUDA: " << call << ": " << cudaGetErrorString(error);
}

cudaStream_t Native(StreamHandle* handle) { return handle->native; }
cudaEvent_t Native(EventHandle* handle) {
  return reinterpret_cast<cudaEvent_t>(handle);
}
cudaGraphExec_t Native(GraphHandle* handle) {
  return reinterpret_cast<cudaGraphExec_t>(handle);
}

absl::Status NoDevice(int32_t index, const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("CUDA device ", index, ": ", why));
}

// If so clears it, so that a later call does not report it again.
bool IsOutOfMemory(cudaError_t error) {
  if (error != cudaErrorMemoryAllocation) return false;
  cudaGetLastError();
  return true;
}

// Kernels are loaded with their library and not when they first run: a first
// request does not wait for that, nor a device for another that loads. Before
// main, as CUDA looks at it once and threads may be reading the environment
// later; who has set it otherwise keeps that.
[[maybe_unused]] const int kLoadsKernelsAtOnce =
    setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);

// Streams share the queues that lead to a device, eight of them by default: one
// whose kernel waits for another process (NCCL's) would hold up a step, or what
// that process waits for. As many as there may be; said as above.
[[maybe_unused]] const int kGivesStreamsTheirOwnQueues =
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);

}  // namespace

void AllowSharedBytes(const void* kernel, int64_t bytes, const char* name) {
  static absl::Mutex mu(absl::kConstInit);
  static auto* const allowed =
      new absl::flat_hash_map<std::pair<int, const void*>, int64_t>();
  int device = 0;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  absl::MutexLock lock(&mu);
  int64_t& before = (*allowed)[{device, kernel}];
  if (bytes <= before) return;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes));
  CHECK_EQ(error, cudaSuccess)
      << "CUDA: " << bytes << " bytes of a block's memory for " << name << ": "
      << cudaGetErrorString(error);
  before = bytes;
}

absl::StatusOr<DeviceProperties> OpenDevice(int32_t index) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count);
      error != cudaSuccess) {
    // Clears it, so that a later call does not report it again.
    cudaGetLastError();
    return NoDevice(index, cudaGetErrorString(error));
  }
  if (index < 0 || index >= count) {
    return NoDevice(index, absl::StrCat("there are ", count, " devices"));
  }
  cudaDeviceProp native;
  if (const cudaError_t error = cudaGetDeviceProperties(&native, index);
      error != cudaSuccess) {
    cudaGetLastError();
    return NoDevice(index, cudaGetErrorString(error));
  }
  if (const cudaError_t error = cudaSetDevice(index); error != cudaSuccess) {
    cudaGetLastError();
    return NoDevice(index, cudaGetErrorString(error));
  }
  DeviceProperties properties;
  properties.name = native.name;
  properties.architecture = 10 * native.major + native.minor;
  int code = 0;
  if (const cudaError_t error = KernelsHere(&code); error != cudaSuccess) {
    cudaGetLastError();
    return NoDevice(
        index, absl::StrCat(native.name, " (compute capability ", native.major,
                            ".", native.minor, "): ", cudaGetErrorString(error),
                            "; build with -DBATON_CUDA_ARCHITECTURES=",
                            properties.architecture));
  }
#if defined(BATON_CUDA_HOPPER)
  properties.group_products = properties.architecture == 90 && code == 90;
#endif
  // Code for older chips has neither clusters nor kernels that begin early.
  properties.clusters = properties.architecture >= 90 && code >= 90;
  properties.multiprocessors = native.multiProcessorCount;
  properties.shared_bytes_per_block =
      static_cast<int64_t>(native.sharedMemPerBlockOptin);
  properties.l2_bytes = native.l2CacheSize;
  properties.total_bytes = static_cast<int64_t>(native.totalGlobalMem);
  return properties;
}

void UseDevice(int32_t index) { Check(cudaSetDevice(index), "cudaSetDevice"); }

absl::Status ReachMemoryOf(int32_t from, int32_t to,
                           const std::string& purpose) {
  if (from == to) return absl::OkStatus();
  int reaches = 0;
  cudaError_t error = cudaDeviceCanAccessPeer(&reaches, from, to);
  if (error == cudaSuccess && reaches != 0) {
    UseDevice(from);
    error = cudaDeviceEnablePeerAccess(to, /*flags=*/0);
    if (error == cudaSuccess) return absl::OkStatus();
    cudaGetLastError();
    if (error == cudaErrorPeerAccessAlreadyEnabled) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      purpose, ": CUDA device ", from, " does not reach the memory of device ",
      to, error == cudaSuccess ? "" : ": ",
      error == cudaSuccess ? "" : cudaGetErrorString(error)));
}

int64_t FreeDeviceBytes() {
  size_t free = 0;
  size_t total = 0;
  Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(
    int64_t bytes, const std::string& purpose) {
  CHECK_GE(bytes, 0);
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, bytes);
      error != cudaSuccess) {
    cudaGetLastError();
    return absl::ResourceExhaustedError(
        absl::StrCat(purpose, ": ", bytes,
                     " bytes of device memory: ", cudaGetErrorString(error)));
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) Check(cudaFree(data_), "cudaFree");
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
  CHECK_GE(bytes, 0);
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  if (const cudaError_t error = cudaMallocHost(&data, bytes);
      error != cudaSuccess) {
    cudaGetLastError();
    return absl::ResourceExhaustedError(
        absl::StrCat(purpose, ": ", bytes,
                     " bytes of pinned memory: ", cudaGetErrorString(error)));
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) Check(cudaFreeHost(data_), "cudaFreeHost");
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
                                               const std::string& purpose) {
  PinnedMemory pinned;
  if (memory.empty()) return pinned;
  void* device = nullptr;
  cudaError_t error =
      cudaHostRegister(memory.data(), memory.size(),
                       cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error == cudaSuccess) {
    pinned.host_ = memory.data();
    error = cudaHostGetDevicePointer(&device, memory.data(), /*flags=*/0);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    return absl::ResourceExhaustedError(
        absl::StrCat(purpose, ": pinning ", memory.size(),
                     " bytes: ", cudaGetErrorString(error)));
  }
  pinned.device_ = static_cast<std::byte*>(device);
  return pinned;
}

PinnedMemory::~PinnedMemory() {
  if (host_ != nullptr) Check(cudaHostUnregister(host_), "cudaHostUnregister");
}
PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : host_(std::exchange(other.host_, nullptr)),
      device_(std::exchange(other.device_, nullptr)) {}
PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(host_, other.host_);
  std::swap(device_, other.device_);
  return *this;
}

Event::Event(bool timed) {
  cudaEvent_t event;
  Check(cudaEventCreateWithFlags(
            &event, timed ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
  handle_ = reinterpret_cast<EventHandle*>(event);
}
Event::~Event() {
  Check(cudaEventDestroy(Native(handle_)), "cudaEventDestroy");
}
void Event::Wait() const {
  Check(cudaEventSynchronize(Native(handle_)), "cudaEventSynchronize");
}
bool Event::Done() const {
  const cudaError_t error = cudaEventQuery(Native(handle_));
  if (error == cudaErrorNotReady) return false;
  Check(error, "cudaEventQuery");
  return true;
}
double Event::MillisecondsSince(const Event& earlier) const {
  float milliseconds = 0;
  Check(cudaEventElapsedTime(&milliseconds, Native(earlier.handle_),
                             Native(handle_)),
        "cudaEventElapsedTime");
  return milliseconds;
}

Graph::~Graph() {
  if (handle_ != nullptr) {
    Check(cudaGraphExecDestroy(Native(handle_)), "cudaGraphExecDestroy");
  }
}
Graph::Graph(Graph&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Stream::Stream(bool urgent) {
  int least = 0;
  int greatest = 0;  // a smaller number
  Check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
        "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream;
  Check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     urgent ? greatest : least),
        "cudaStreamCreateWithPriority");
  handle_ = new StreamHandle{stream};
}
Stream::~Stream() {
  Check(cudaStreamDestroy(Native(handle_)), "cudaStreamDestroy");
  delete handle_;
}
void Stream::SetEarlyKernels(bool early) { handle_->early_kernels = early; }
void Stream::SetMostBlockMemory(bool most) {
  handle_->most_block_memory = most;
}
void Stream::CopyToDevice(void* device, const void* host, int64_t bytes) {
  Check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice,
                        Native(handle_)),
        "cudaMemcpyAsync to the device");
}
void Stream::CopyToHost(void* host, const void* device, int64_t bytes) {
  Check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost,
                        Native(handle_)),
        "cudaMemcpyAsync to the host");
}
void Stream::CopyOnDevice(void* to, const void* from, int64_t bytes) {
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                        Native(handle_)),
        "cudaMemcpyAsync on the device");
}
void Stream::Fill(void* device, int value, int64_t bytes) {
  Check(cudaMemsetAsync(device, value, bytes, Native(handle_)),
        "cudaMemsetAsync");
}
void Stream::Record(const Event& event) {
  Check(cudaEventRecord(Native(event.handle()), Native(handle_)),
        "cudaEventRecord");
}
void Stream::WaitFor(const Event& event) {
  Check(cudaStreamWaitEvent(Native(handle_), Native(event.handle()),
                            /*flags=*/0),
        "cudaStreamWaitEvent");
}
void Stream::Call(std::function<void()> what) {
  auto* const call = new std::function<void()>(std::move(what));
  const auto run = [](void* data) {
    auto* const what = static_cast<std::function<void()>*>(data);
    (*what)();
    delete what;
  };
  Check(cudaLaunchHostFunc(Native(handle_), run, call), "cudaLaunchHostFunc");
}
void Stream::Wait() {
  Check(cudaStreamSynchronize(Native(handle_)), "cudaStreamSynchronize");
}
void Stream::BeginGraph() {
  Check(
      cudaStreamBeginCapture(Native(handle_), cudaStreamCaptureModeThreadLocal),
      "cudaStreamBeginCapture");
}
Graph Stream::EndGraph() {
  cudaGraph_t recorded;
  Check(cudaStreamEndCapture(Native(handle_), &recorded),
        "cudaStreamEndCapture");
  cudaGraphExec_t ready;
  const cudaError_t made = cudaGraphInstantiate(&ready, recorded, /*flags=*/0);
  Check(cudaGraphDestroy(recorded), "cudaGraphDestroy");
  if (IsOutOfMemory(made)) return Graph();
  Check(made, "cudaGraphInstantiate");
  Graph graph;
  graph.handle_ = reinterpret_cast<GraphHandle*>(ready);
  // What its first launch would do.
  const cudaError_t uploaded = cudaGraphUpload(ready, Native(handle_));
  if (IsOutOfMemory(uploaded)) return Graph();
  Check(uploaded, "cudaGraphUpload");
  return graph;
}
void Stream::Launch(const Graph& graph) {
  CHECK(!graph.empty());
  Check(cudaGraphLaunch(Native(graph.handle_), Native(handle_)),
        "cudaGraphLaunch");
}

}  // namespace baton::engine::cuda
