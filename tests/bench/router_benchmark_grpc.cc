// The gRPC clients of router_benchmark.
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/log.h"
#include "common/rpc/grpc_setup.h"
#include "tests/bench/router_benchmark_clients.h"
#include "tests/bench/router_benchmark_router.h"

namespace baton::bench {
namespace {

// Connections that all streams share.
constexpr int kChannels = 8;

class GrpcClients final : public StreamClients {
 public:
  GrpcClients(const Options& options, TokenBoard* board, Window* window)
      : options_(options),
        prompt_(MakePrompt(options.prompt_tokens)),
        board_(board),
        window_(window),
        calls_(TokenBoard::kMaxStreams) {
    for (int i = 0; i < kChannels; ++i) {
      stubs_.push_back(
          v1::Inference::NewStub(rpc::MakeControlChannel(options.address)));
    }
  }

  ~GrpcClients() override {
    closing_ = true;
    for (const std::unique_ptr<Call>& call : calls_) {
      if (call != nullptr) call->context.TryCancel();
    }
    absl::MutexLock lock(&mu_);
    const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return num_open_ == 0;
    };
    mu_.Await(absl::Condition(&none));
  }

  void Leave(int stream) override {
    calls_[stream]->left = true;
    board_->Left(stream, NowNs());
    calls_[stream]->context.TryCancel();
  }

  int NumBegun() const override { return num_begun_; }
  int NumEnded() const override { return num_ended_; }
  std::string FirstError() const override {
    absl::MutexLock lock(&mu_);
    return first_error_;
  }

 private:
  struct Call final : public grpc::ClientReadReactor<v1::GenerateResponse> {
    Call(GrpcClients* clients, int stream) : clients(clients), stream(stream) {}

    void Start(v1::Inference::Stub* stub) {
      stub->async()->Generate(&context, &request, this);
      StartRead(&response);
      StartCall();
    }

    void OnReadDone(bool ok) override {
      if (!ok) return;
      const int64_t now = NowNs();
      const int tokens = response.token_ids_size();
      if (tokens > 0) {
        if (next == 0) ++clients->num_begun_;
        clients->window_->Take(stream, next, tokens, now);
        next += static_cast<uint32_t>(tokens);
      }
      StartRead(&response);
    }

    void OnDone(const grpc::Status& status) override {
      clients->Ended(*this, status);
    }

    GrpcClients* const clients;
    const int stream;
    grpc::ClientContext context;
    v1::GenerateRequest request;
    v1::GenerateResponse response;  // the read under way
    uint32_t next = 0;
    std::atomic<bool> left{false};
  };

  void Begin(int stream) override {
    board_->Forget(stream);
    auto call = std::make_unique<Call>(this, stream);
    call->request = MakeGenerateRequest(stream, prompt_, options_.max_tokens);
    {
      absl::MutexLock lock(&mu_);
      ++num_open_;
    }
    Call* const started = call.get();
    calls_[stream] = std::move(call);
    started->Start(stubs_[stream % kChannels].get());
  }

  // gRPC touches the call no more.
  void Ended(const Call& call, const grpc::Status& status) {
    absl::MutexLock lock(&mu_);
    if (!closing_ && !call.left) {
      ++num_ended_;
      if (first_error_.empty()) {
        first_error_ =
            absl::StrCat("stream ", call.stream, " after ", call.next,
                         " tokens: ", status.error_message(), " (code ",
                         static_cast<int>(status.error_code()), ")");
      }
    }
    --num_open_;
  }

  const Options options_;
  const std::vector<uint32_t> prompt_;
  TokenBoard* const board_;
  Window* const window_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  // Kept until all are over.
  std::vector<std::unique_ptr<Call>> calls_;

  std::atomic<bool> closing_{false};
  std::atomic<int> num_begun_{0}, num_ended_{0};
  mutable absl::Mutex mu_;
  int num_open_ ABSL_GUARDED_BY(mu_) = 0;
  std::string first_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<StreamClients> MakeGrpcClients(
    const StreamClients::Options& options, TokenBoard* board, Window* window) {
  return std::make_unique<GrpcClients>(options, board, window);
}

}  // namespace baton::bench
