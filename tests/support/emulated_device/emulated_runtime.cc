#include "tests/support/emulated_device/emulated_runtime.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "engine/cuda/rank_group.h"
#include "tests/support/emulated_device/runtime_state.h"

namespace baton::engine::cuda {

struct StreamHandle {
  bool recording = false;
  std::vector<std::function<void()>> recorded;
  // What was given and has not run.
  std::deque<std::function<void()>> work;
  // Some thread runs a piece of it, which waits for another stream.
  bool busy = false;
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

using emulated::runtime_mu;

// How long a rank waits for another one.
constexpr absl::Duration kRankTimeout = absl::Minutes(1);

emulated::LaunchCounts launches;
int graphs = -1;  // that will find memory; negative: all

bool IsIdle(const StreamHandle& stream) {
  return !stream.busy && stream.work.empty();
}
// Whether a piece of it may run now. A thread that waits for this waits for
// what it is after as well: who runs a piece may wait for that thread.
bool HasWork(const StreamHandle& stream) {
  return !stream.busy && !stream.work.empty();
}

// Below: the lock is held.

// REQUIRES: HasWork(stream).
void RunNext(StreamHandle& stream) {
  const std::function<void()> next = std::move(stream.work.front());
  stream.work.pop_front();
  stream.busy = true;
  next();
  stream.busy = false;
}

void RunUntil(const EventHandle& event, uint64_t point) {
  while (event.reached < point) {
    CHECK(!IsIdle(*event.stream)) << "an event's stream is gone";
    const auto may_go_on = [&] {
      return event.reached >= point || !event.stream->busy;
    };
    runtime_mu.Await(absl::Condition(&may_go_on));
    if (event.reached < point && HasWork(*event.stream)) {
      RunNext(*event.stream);
    }
  }
}

// What a graph cannot hold.
void Give(StreamHandle* stream, std::function<void()> work) {
  CHECK(!stream->recording);
  stream->work.push_back(std::move(work));
}

// What it can.
void GiveOrRecord(StreamHandle* stream, std::function<void()> work) {
  if (stream->recording) {
    stream->recorded.push_back(std::move(work));
  } else {
    stream->work.push_back(std::move(work));
  }
}

class EmulatedRankGroup;
std::vector<EmulatedRankGroup*>& Groups() {
  static auto* const groups = new std::vector<EmulatedRankGroup*>;
  return *groups;
}

// Who comes first to a meeting goes on with the others' streams until they are
// there, too, or waits for their threads to give them work.
class EmulatedRankGroup final : public RankGroup {
 public:
  explicit EmulatedRankGroup(int32_t ranks) : ranks_(ranks) {
    absl::MutexLock lock(&runtime_mu);
    Groups().push_back(this);
  }
  ~EmulatedRankGroup() override {
    absl::MutexLock lock(&runtime_mu);
    std::erase(Groups(), this);
  }

  // Whether some device may wait for what that one has not been given yet. The
  // lock is held.
  bool WaitFor(int32_t rank) const {
    if (rank >= static_cast<int32_t>(ranks_.size())) return false;
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& other) {
      return other.given > ranks_[rank].given;
    });
  }

  void AllGather(int32_t rank, const void* send, void* receive, int64_t bytes,
                 Stream& stream) override {
    CHECK_EQ(emulated::CurrentDevice(), rank);
    absl::MutexLock lock(&runtime_mu);
    ranks_.at(rank).stream = stream.handle();
    if (!stream.handle()->recording) ++ranks_[rank].given;
    GiveOrRecord(stream.handle(), [=, this] {
      Meet(rank, static_cast<const std::byte*>(send),
           static_cast<std::byte*>(receive), bytes);
    });
  }

 private:
  struct Rank {
    StreamHandle* stream = nullptr;
    uint64_t given = 0;  // AllGathers, those of graphs aside
    // Meetings that it came to, and what it brought to the last one.
    uint64_t meetings = 0;
    const std::byte* send = nullptr;
    std::byte* receive = nullptr;
    int64_t bytes = 0;
  };

  void Meet(int32_t rank, const std::byte* send, std::byte* receive,
            int64_t bytes) {
    Rank& mine = ranks_[rank];
    const uint64_t meeting = ++mine.meetings;
    mine.send = send;
    mine.receive = receive;
    mine.bytes = bytes;
    for (Rank& other : ranks_) {
      const auto has_something_to_do = [&] {
        return other.meetings >= meeting ||
               (other.stream != nullptr && HasWork(*other.stream));
      };
      while (other.meetings < meeting) {
        CHECK(runtime_mu.AwaitWithTimeout(absl::Condition(&has_something_to_do),
                                          kRankTimeout))
            << "a rank does not come";
        if (other.meetings < meeting) RunNext(*other.stream);
      }
    }
    // Somebody else may have seen it first, and some be further on already.
    if (done_ >= meeting) return;
    done_ = meeting;
    for (const Rank& to : ranks_) {
      CHECK_EQ(to.bytes, bytes) << "ranks have different steps";
      for (size_t from = 0; from < ranks_.size(); ++from) {
        std::memcpy(to.receive + from * bytes, ranks_[from].send, bytes);
      }
    }
  }

  std::vector<Rank> ranks_;
  // Meetings whose bytes have moved.
  uint64_t done_ = 0;
};

}  // namespace

namespace emulated {

ABSL_CONST_INIT absl::Mutex runtime_mu(absl::kConstInit);

void RunOrRecord(StreamHandle* stream, std::function<void()> work) {
  absl::MutexLock lock(&runtime_mu);
  if (stream->recording) {
    stream->recorded.push_back(std::move(work));
    return;
  }
  stream->work.push_back([work = std::move(work)] {
    ++launches.others;
    work();
  });
}

bool IsWaitedFor(int32_t device) {
  return std::any_of(Groups().begin(), Groups().end(),
                     [&](const auto* group) { return group->WaitFor(device); });
}

void SetGraphs(int count) {
  absl::MutexLock lock(&runtime_mu);
  graphs = count;
}

LaunchCounts Launches() {
  absl::MutexLock lock(&runtime_mu);
  return launches;
}

}  // namespace emulated

absl::StatusOr<std::unique_ptr<RankGroup>> CreateRankGroup(int32_t ranks) {
  return std::unique_ptr<RankGroup>(new EmulatedRankGroup(ranks));
}

Event::Event(bool) : handle_(new EventHandle) {}
Event::~Event() { delete handle_; }
void Event::Wait() const {
  absl::MutexLock lock(&runtime_mu);
  CHECK_GT(handle_->recorded, 0u);
  RunUntil(*handle_, handle_->recorded);
}
bool Event::Done() const {
  absl::MutexLock lock(&runtime_mu);
  CHECK_GT(handle_->recorded, 0u);
  if (handle_->reached == handle_->recorded) return true;
  // Time passes, as far as anybody can tell.
  if (HasWork(*handle_->stream)) RunNext(*handle_->stream);
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
// Kernels are checked for it, whether they may or not.
void Stream::SetEarlyKernels(bool) {}

void Stream::SetMostBlockMemory(bool) {}
void Stream::CopyToDevice(void* device, const void* host, int64_t bytes) {
  absl::MutexLock lock(&runtime_mu);
  Give(handle_, [=] { std::memcpy(device, host, bytes); });
}
void Stream::CopyToHost(void* host, const void* device, int64_t bytes) {
  absl::MutexLock lock(&runtime_mu);
  GiveOrRecord(handle_, [=] { std::memcpy(host, device, bytes); });
}
void Stream::CopyOnDevice(void* to, const void* from, int64_t bytes) {
  emulated::RunOrRecord(handle_, [=] { std::memcpy(to, from, bytes); });
}
void Stream::Fill(void* device, int value, int64_t bytes) {
  emulated::RunOrRecord(handle_, [=] { std::memset(device, value, bytes); });
}
void Stream::Record(const Event& event) {
  absl::MutexLock lock(&runtime_mu);
  EventHandle* const e = event.handle();
  const uint64_t point = ++e->recorded;
  e->stream = handle_;
  Give(handle_, [=] { e->reached = std::max(e->reached, point); });
}
void Stream::WaitFor(const Event& event) {
  absl::MutexLock lock(&runtime_mu);
  EventHandle* const e = event.handle();
  CHECK(e->stream != handle_) << "a stream waits for itself";
  const uint64_t point = e->recorded;
  Give(handle_, [=] { RunUntil(*e, point); });
}
void Stream::Call(std::function<void()> what) {
  absl::MutexLock lock(&runtime_mu);
  Give(handle_, std::move(what));
}
void Stream::Wait() {
  absl::MutexLock lock(&runtime_mu);
  CHECK(!handle_->recording);
  while (!IsIdle(*handle_)) {
    const auto is_free = [this] { return !handle_->busy; };
    runtime_mu.Await(absl::Condition(&is_free));
    if (HasWork(*handle_)) RunNext(*handle_);
  }
}
void Stream::BeginGraph() {
  absl::MutexLock lock(&runtime_mu);
  CHECK(!handle_->recording);
  handle_->recording = true;
}
Graph Stream::EndGraph() {
  absl::MutexLock lock(&runtime_mu);
  CHECK(handle_->recording);
  handle_->recording = false;
  if (graphs == 0) {
    handle_->recorded.clear();
    return Graph();
  }
  if (graphs > 0) --graphs;
  Graph graph;
  graph.handle_ = new GraphHandle{
      std::make_shared<const std::vector<std::function<void()>>>(
          std::exchange(handle_->recorded, {}))};
  return graph;
}
void Stream::Launch(const Graph& graph) {
  CHECK(!graph.empty());
  absl::MutexLock lock(&runtime_mu);
  Give(handle_, [stream = handle_, work = graph.handle_->work] {
    ++launches.graphs;
    // Piece by piece, as other streams may wait for one.
    stream->work.insert(stream->work.begin(), work->begin(), work->end());
  });
}

}  // namespace baton::engine::cuda
