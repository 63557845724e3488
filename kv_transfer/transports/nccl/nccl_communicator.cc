#include "kv_transfer/transports/nccl/nccl_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "common/nccl/nccl_library.h"
#include "common/status_macros.h"

namespace baton::kv_transfer {
namespace {

static_assert(NCCL_UNIQUE_ID_BYTES <= kMaxUniqueIdBytes);

constexpr int kRanks = 2;

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

class CudaStream final {
 public:
  CudaStream() = default;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // Others wait for its kernels: they get the multiprocessors that a step
  // leaves before what waits of that, and after copies of pages and their
  // hashes. Priorities are smaller numbers where they are greater.
  absl::Status Open() {
    int least = 0;
    int greatest = 0;
    BATON_RETURN_IF_ERROR(
        CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                   "cudaDeviceGetStreamPriorityRange"));
    return CudaStatus(
        cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                     std::min(least, greatest + 1)),
        "cudaStreamCreateWithPriority");
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Something on a stream has been done.
class CudaEvent final {
 public:
  CudaEvent() = default;
  CudaEvent(CudaEvent&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  absl::Status Record(cudaStream_t stream) {
    BATON_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
                   "cudaEventCreate"));
    return CudaStatus(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  // Whether all that was on the stream before Record is done.
  absl::StatusOr<bool> Done() const {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    BATON_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclLibrary& nccl,
                   const NcclCommunicatorOptions& options, int rank,
                   std::string unique_id, std::function<void()> on_news)
      : nccl_(nccl),
        options_(options),
        rank_(rank),
        on_news_(std::move(on_news)),
        unique_id_(std::move(unique_id)),
        thread_([this] { Run(); }) {}
  ~NcclCommunicator() override {
    {
      absl::MutexLock lock(&mu_);
      CHECK(said_quiet_) << "a communicator is destroyed before it is quiet";
    }
    thread_.join();
  }

  void Post(PostedGroup group) override {
    absl::MutexLock lock(&mu_);
    if (!abort_) to_post_.push_back(std::move(group));
  }

  CommunicatorNews Poll() override {
    absl::MutexLock lock(&mu_);
    said_quiet_ = said_quiet_ || news_.quiet;
    return std::exchange(news_, {});
  }

  void Abort() override {
    absl::MutexLock lock(&mu_);
    abort_ = true;
    to_post_.clear();
  }

 private:
  struct InFlight {
    uint64_t ticket = 0;
    CudaEvent event;
  };

  // All below: the thread.
  void Run();
  // Creates the communicator; Cancelled when it is to be aborted meanwhile.
  absl::Status Create();
  absl::Status Serve();
  absl::Status Start(const PostedGroup& group);
  absl::Status Enqueue(const PostedGroup& group);
  // Tells which groups in front are done.
  absl::Status TellDone();
  // Until NCCL has done what it said is in progress.
  absl::Status AwaitNccl(absl::string_view what);
  void AbortAndDrain();
  absl::Status Check(ncclResult_t result, absl::string_view what) const;

  // Changes the news and says so.
  template <typename Change>
  void Tell(Change change) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    change(news_);
    on_news_();
  }
  bool IsAborted() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return abort_;
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return abort_ || !to_post_.empty();
  }
  bool AbortAsked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return abort_; }

  const NcclLibrary& nccl_;
  const NcclCommunicatorOptions options_;
  const int rank_;
  const std::function<void()> on_news_;
  const std::string unique_id_;  // of rank 1

  // The thread.
  CudaStream stream_;
  ncclComm_t communicator_ = nullptr;
  std::deque<InFlight> in_flight_;  // in the order of the stream

  mutable absl::Mutex mu_;
  std::deque<PostedGroup> to_post_ ABSL_GUARDED_BY(mu_);
  bool abort_ ABSL_GUARDED_BY(mu_) = false;
  CommunicatorNews news_ ABSL_GUARDED_BY(mu_);
  bool said_quiet_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // last: it uses all of the above
};

absl::Status NcclCommunicator::Check(ncclResult_t result,
                                     absl::string_view what) const {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", nccl_.get_error_string(result), " (",
                   nccl_.get_last_error(communicator_), ")"));
}

void NcclCommunicator::Run() {
  absl::Status status = Create();
  if (status.ok()) {
    Tell([](CommunicatorNews& news) { news.ready = true; });
    status = Serve();
  }
  CHECK(!status.ok());
  if (!IsAborted()) {
    Tell([&](CommunicatorNews& news) { news.failure = status; });
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &NcclCommunicator::AbortAsked));
  }
  AbortAndDrain();
  Tell([](CommunicatorNews& news) { news.quiet = true; });
}

absl::Status NcclCommunicator::Create() {
  BATON_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(options_.device), "cudaSetDevice"));
  BATON_RETURN_IF_ERROR(stream_.Open());
  ncclUniqueId id;
  std::memset(&id, 0, sizeof(id));
  if (rank_ == 0) {
    BATON_RETURN_IF_ERROR(Check(nccl_.get_unique_id(&id), "ncclGetUniqueId"));
    Tell([&](CommunicatorNews& news) {
      news.unique_id.assign(id.internal, sizeof(id.internal));
    });
  } else if (unique_id_.size() != sizeof(id.internal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unique id has ", unique_id_.size(), " bytes, not ",
                     sizeof(id.internal)));
  } else {
    std::memcpy(id.internal, unique_id_.data(), sizeof(id.internal));
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (options_.max_blocks > 0) {
    config.minCTAs = 1;
    config.maxCTAs = options_.max_blocks;
  }
  const ncclResult_t result =
      nccl_.comm_init_rank_config(&communicator_, kRanks, id, rank_, &config);
  if (result != ncclInProgress) {
    BATON_RETURN_IF_ERROR(Check(result, "ncclCommInitRankConfig"));
  }
  return AwaitNccl("creating a communicator");
}

absl::Status NcclCommunicator::Serve() {
  for (;;) {
    std::deque<PostedGroup> groups;
    {
      absl::MutexLock lock(&mu_);
      const absl::Condition has_work(this, &NcclCommunicator::HasWork);
      if (in_flight_.empty()) {
        mu_.Await(has_work);
      } else {
        mu_.AwaitWithTimeout(has_work, options_.poll_interval);
      }
      if (abort_) return absl::CancelledError("aborted");
      groups.swap(to_post_);
    }
    for (const PostedGroup& group : groups) {
      BATON_RETURN_IF_ERROR(Start(group));
    }
    BATON_RETURN_IF_ERROR(TellDone());
    ncclResult_t state = ncclSuccess;
    BATON_RETURN_IF_ERROR(
        Check(nccl_.comm_get_async_error(communicator_, &state),
              "ncclCommGetAsyncError"));
    if (state != ncclInProgress) {
      BATON_RETURN_IF_ERROR(Check(state, "moving bytes"));
    }
  }
}

absl::Status NcclCommunicator::Start(const PostedGroup& group) {
  BATON_RETURN_IF_ERROR(Check(nccl_.group_start(), "ncclGroupStart"));
  const absl::Status enqueued = Enqueue(group);
  // Also after an error: every group that was started must end.
  const ncclResult_t result = nccl_.group_end();
  BATON_RETURN_IF_ERROR(enqueued);
  if (result != ncclInProgress) {
    BATON_RETURN_IF_ERROR(Check(result, "ncclGroupEnd"));
  }
  // Not before is it on the stream.
  BATON_RETURN_IF_ERROR(AwaitNccl("starting a group"));
  InFlight in_flight;
  in_flight.ticket = group.ticket;
  BATON_RETURN_IF_ERROR(in_flight.event.Record(stream_.get()));
  in_flight_.push_back(std::move(in_flight));
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Enqueue(const PostedGroup& group) {
  const int other = 1 - rank_;
  for (absl::Span<std::byte> piece : group.pieces) {
    const ncclResult_t result =
        group.is_send ? nccl_.send(piece.data(), piece.size(), ncclUint8, other,
                                   communicator_, stream_.get())
                      : nccl_.recv(piece.data(), piece.size(), ncclUint8, other,
                                   communicator_, stream_.get());
    if (result == ncclInProgress) continue;
    BATON_RETURN_IF_ERROR(
        Check(result, group.is_send ? "ncclSend" : "ncclRecv"));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::TellDone() {
  std::vector<uint64_t> done;
  while (!in_flight_.empty()) {
    BATON_ASSIGN_OR_RETURN(const bool is_done, in_flight_.front().event.Done());
    if (!is_done) break;
    done.push_back(in_flight_.front().ticket);
    in_flight_.pop_front();
  }
  if (!done.empty()) {
    Tell([&](CommunicatorNews& news) {
      news.done.insert(news.done.end(), done.begin(), done.end());
    });
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::AwaitNccl(absl::string_view what) {
  for (;;) {
    ncclResult_t state = ncclSuccess;
    BATON_RETURN_IF_ERROR(
        Check(nccl_.comm_get_async_error(communicator_, &state),
              "ncclCommGetAsyncError"));
    if (state != ncclInProgress) return Check(state, what);
    absl::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(
            absl::Condition(this, &NcclCommunicator::AbortAsked),
            options_.poll_interval)) {
      return absl::CancelledError("aborted");
    }
  }
}

void NcclCommunicator::AbortAndDrain() {
  if (communicator_ != nullptr) {
    const ncclResult_t aborted = nccl_.comm_abort(communicator_);
    if (aborted != ncclSuccess && aborted != ncclInProgress) {
      LOG(WARNING) << "kv_transfer: ncclCommAbort: "
                   << nccl_.get_error_string(aborted);
    }
    communicator_ = nullptr;
  }
  // Its kernels leave when they see the abort; then nothing is written.
  if (stream_.get() != nullptr) {
    const absl::Status idle = CudaStatus(cudaStreamSynchronize(stream_.get()),
                                         "cudaStreamSynchronize");
    // The device is lost to this process, and runs nothing of it any more.
    if (!idle.ok()) LOG(ERROR) << "kv_transfer: " << idle.message();
  }
  in_flight_.clear();
}

class NcclCommunicators final : public Communicators {
 public:
  NcclCommunicators(const NcclLibrary& nccl,
                    const NcclCommunicatorOptions& options)
      : nccl_(nccl), options_(options) {}

  std::unique_ptr<Communicator> Create(int rank, const std::string& unique_id,
                                       std::function<void()> on_news) override {
    return std::make_unique<NcclCommunicator>(nccl_, options_, rank, unique_id,
                                              std::move(on_news));
  }

 private:
  const NcclLibrary& nccl_;
  const NcclCommunicatorOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicators>> CreateNcclCommunicators(
    const NcclCommunicatorOptions& options) {
  BATON_ASSIGN_OR_RETURN(const NcclLibrary* const nccl, LoadNccl());
  if (!options.check_device) {
    return std::make_unique<NcclCommunicators>(*nccl, options);
  }
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA: ", cudaGetErrorString(error)));
  }
  if (options.device < 0 || options.device >= devices) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA device ", options.device, ": there are ", devices));
  }
  return std::make_unique<NcclCommunicators>(*nccl, options);
}

}  // namespace baton::kv_transfer
