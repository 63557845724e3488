#include "tests/support/emulated_device/emulated_runtime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::engine::cuda {

struct StreamHandle {
  bool recording = false;
  std::vector<std::function<void()>> recorded;
  // What was given and has not run.
  std::deque<std::function<void()>> work;
};
struct EventHandle {
  // How often it was recorded, on which stream last, and which of these points
  // that has reached.
  uint64_t recorded = 0;
  uint64_t reached = 0;
  StreamHandle* stream = nullptr;
};
struct GraphHandle {
  std::shared_ptr<const std::vector<std::function<void()>>> work;
};

namespace {

constexpr int64_t kDeviceBytes = int64_t{1} << 30;
constexpr size_t kAlignment = 256;
int64_t taken_bytes = 0;
emulated::LaunchCounts launches;

std::byte* Take(int64_t bytes) {
  const size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* memory = static_cast<std::byte*>(
      std::aligned_alloc(kAlignment, std::max(padded, kAlignment)));
  CHECK(memory != nullptr);
  // Nobody may count on zeros.
  std::memset(memory, 0xff, padded);
  return memory;
}

void RunNext(StreamHandle& stream) {
  const std::function<void()> next = std::move(stream.work.front());
  stream.work.pop_front();
  next();
}

void RunUntil(const EventHandle& event, uint64_t point) {
  while (event.reached < point) {
    CHECK(!event.stream->work.empty()) << "an event's stream is gone";
    RunNext(*event.stream);
  }
}

// What a graph cannot hold.
void Give(StreamHandle* stream, std::function<void()> work) {
  CHECK(!stream->recording);
  stream->work.push_back(std::move(work));
}

}  // namespace

namespace emulated {

void RunOrRecord(StreamHandle* stream, std::function<void()> work) {
  if (stream->recording) {
    stream->recorded.push_back(std::move(work));
    return;
  }
  stream->work.push_back([work = std::move(work)] {
    ++launches.others;
    work();
  });
}

LaunchCounts Launches() { return launches; }

}  // namespace emulated

absl::StatusOr<DeviceProperties> OpenDevice(int32_t index) {
  if (index != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("device ", index, ": there is one emulated device"));
  }
  DeviceProperties properties;
  properties.name = "emulated on the CPU";
  properties.architecture = 90;
  properties.multiprocessors = 4;
  properties.shared_bytes_per_block = 227 << 10;
  properties.l2_bytes = 1 << 20;
  properties.total_bytes = kDeviceBytes;
  return properties;
}

void UseDevice(int32_t) {}

int64_t FreeDeviceBytes() { return kDeviceBytes - taken_bytes; }

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(
    int64_t bytes, const std::string& purpose) {
  if (bytes > FreeDeviceBytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(purpose, ": ", bytes, " bytes of device memory"));
  }
  DeviceBuffer buffer;
  buffer.data_ = Take(bytes);
  buffer.bytes_ = bytes;
  taken_bytes += bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  taken_bytes -= bytes_;
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
  PinnedBuffer buffer;
  buffer.data_ = Take(bytes);
  buffer.bytes_ = bytes;
  return buffer;
}
PinnedBuffer::~PinnedBuffer() { std::free(data_); }
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

Event::Event(bool) : handle_(new EventHandle) {}
Event::~Event() { delete handle_; }
void Event::Wait() const {
  CHECK_GT(handle_->recorded, 0u);
  RunUntil(*handle_, handle_->recorded);
}
bool Event::Done() const {
  CHECK_GT(handle_->recorded, 0u);
  if (handle_->reached == handle_->recorded) return true;
  // Time passes, as far as anybody can tell.
  RunNext(*handle_->stream);
  return false;
}
double Event::MillisecondsSince(const Event&) const { return 0; }

Graph::~Graph() { delete handle_; }
Graph::Graph(Graph&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Stream::Stream(bool) : handle_(new StreamHandle) {}
// What nobody waited for is not done: whoever needed it sees that.
Stream::~Stream() { delete handle_; }
void Stream::CopyToDevice(void* device, const void* host, int64_t bytes) {
  Give(handle_, [=] { std::memcpy(device, host, bytes); });
}
void Stream::CopyToHost(void* host, const void* device, int64_t bytes) {
  if (!handle_->recording) {
    Give(handle_, [=] { std::memcpy(host, device, bytes); });
    return;
  }
  handle_->recorded.push_back([=] { std::memcpy(host, device, bytes); });
}
void Stream::CopyOnDevice(void* to, const void* from, int64_t bytes) {
  emulated::RunOrRecord(handle_, [=] { std::memcpy(to, from, bytes); });
}
void Stream::Fill(void* device, int value, int64_t bytes) {
  emulated::RunOrRecord(handle_, [=] { std::memset(device, value, bytes); });
}
void Stream::Record(const Event& event) {
  EventHandle* const e = event.handle();
  const uint64_t point = ++e->recorded;
  e->stream = handle_;
  Give(handle_, [=] { e->reached = std::max(e->reached, point); });
}
void Stream::WaitFor(const Event& event) {
  EventHandle* const e = event.handle();
  CHECK(e->stream != handle_) << "a stream waits for itself";
  const uint64_t point = e->recorded;
  Give(handle_, [=] { RunUntil(*e, point); });
}
void Stream::Call(std::function<void()> what) {
  Give(handle_, std::move(what));
}
void Stream::Wait() {
  CHECK(!handle_->recording);
  while (!handle_->work.empty()) RunNext(*handle_);
}
void Stream::BeginGraph() {
  CHECK(!handle_->recording);
  handle_->recording = true;
}
Graph Stream::EndGraph() {
  CHECK(handle_->recording);
  handle_->recording = false;
  Graph graph;
  graph.handle_ = new GraphHandle{
      std::make_shared<const std::vector<std::function<void()>>>(
          std::exchange(handle_->recorded, {}))};
  return graph;
}
void Stream::Launch(const Graph& graph) {
  CHECK(!graph.empty());
  Give(handle_, [work = graph.handle_->work] {
    ++launches.graphs;
    for (const auto& one : *work) one();
  });
}

}  // namespace baton::engine::cuda
