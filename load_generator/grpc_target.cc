#include "load_generator/grpc_target.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace baton::load_generator {
namespace {

OutcomeKind KindOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return OutcomeKind::kFinished;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return OutcomeKind::kRejected;
    case absl::StatusCode::kDeadlineExceeded:
      return OutcomeKind::kTimedOut;
    default:
      return OutcomeKind::kFailed;
  }
}

class GrpcTarget final : public Target {
 public:
  explicit GrpcTarget(std::unique_ptr<client::Client> client)
      : client_(std::move(client)) {}

  ~GrpcTarget() override {
    // Each waits for its callbacks, which look for their slots.
    std::vector<std::unique_ptr<client::GenerateCall>> open;
    absl::ReleasableMutexLock lock(&mu_);
    for (auto& [number, slot] : calls_) open.push_back(std::move(slot.call));
    lock.Release();
    open.clear();
  }

  void Send(TargetRequest request,
            std::shared_ptr<TargetListener> listener) override {
    v1::GenerateRequest message;
    if (request.tokens.empty()) {
      message.set_text(request.text);
    } else {
      message.mutable_token_ids()->mutable_ids()->Add(request.tokens.begin(),
                                                      request.tokens.end());
    }
    message.set_max_tokens(request.output_tokens);
    message.set_ignore_eos(true);
    client::GenerateOptions options;
    options.timeout = request.timeout;
    const auto end = std::make_shared<TargetEnd>();
    const uint64_t number = Reserve();
    std::unique_ptr<client::GenerateCall> call = client_->StartGenerate(
        message, options,
        [listener, end](const v1::GenerateResponse& response) {
          if (response.token_ids_size() > 0) {
            listener->OnTokens(Clock::Monotonic()->Now());
          }
          if (response.has_usage()) {
            end->prompt_tokens = response.usage().prompt_tokens();
            end->output_tokens = response.usage().output_tokens();
            end->cached_tokens = response.usage().cached_prompt_tokens();
          }
          return true;
        },
        [this, listener, end, number](const absl::Status& status) {
          end->kind = KindOf(status);
          if (!status.ok()) end->error = std::string(status.message());
          listener->OnEnd(Clock::Monotonic()->Now(), *end);
          Ended(number);
        });
    Keep(number, std::move(call));
  }

 private:
  struct Slot {
    std::unique_ptr<client::GenerateCall> call;
    bool ended = false;
  };

  uint64_t Reserve() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    calls_.emplace(++last_, Slot());
    return last_;
  }

  // A call must not be destroyed by its own callback: those that have ended go
  // when the next one is kept.
  void Ended(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    calls_.at(number).ended = true;
  }

  void Keep(uint64_t number, std::unique_ptr<client::GenerateCall> call)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<std::unique_ptr<client::GenerateCall>> gone;
    {
      absl::MutexLock lock(&mu_);
      calls_.at(number).call = std::move(call);
      for (auto it = calls_.begin(); it != calls_.end();) {
        if (it->second.ended && it->second.call != nullptr) {
          gone.push_back(std::move(it->second.call));
          it = calls_.erase(it);
        } else {
          ++it;
        }
      }
    }
    // Waits for callbacks, which take the lock.
  }

  const std::unique_ptr<client::Client> client_;
  absl::Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Slot> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Target>> CreateGrpcTarget(
    const client::ClientOptions& options) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<client::Client> client,
                         client::Client::Connect(options));
  return std::make_unique<GrpcTarget>(std::move(client));
}

}  // namespace baton::load_generator
