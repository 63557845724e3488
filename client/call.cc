#include "client/call.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton::client {
namespace {

constexpr absl::Duration kLongestCall = absl::Hours(24 * 366);
constexpr size_t kMaxMetadataBytes = 4096;
// As the router writes it, and where a status keeps it.
constexpr char kRetryAfterKey[] = "retry-after-ms";
constexpr char kRetryAfterPayload[] = "baton.v1/retry-after-ms";

}  // namespace

absl::Status CheckMetadataValue(const std::string& what,
                                const std::string& text) {
  if (text.size() > kMaxMetadataBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", text.size(), " characters, at most ",
                     kMaxMetadataBytes, " are allowed"));
  }
  // Not quoted: it may be a secret.
  if (!std::all_of(text.begin(), text.end(),
                   [](unsigned char c) { return absl::ascii_isprint(c); })) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " may hold printable ASCII characters only"));
  }
  return absl::OkStatus();
}

Call::Call(absl::Duration timeout, const std::string& api_key) {
  context_.set_deadline(std::chrono::system_clock::now() +
                        absl::ToChronoMilliseconds(std::clamp(
                            timeout, absl::ZeroDuration(), kLongestCall)));
  if (!api_key.empty()) {
    context_.AddMetadata("authorization", absl::StrCat("Bearer ", api_key));
  }
}

void Call::Cancel() { context_.TryCancel(); }

absl::Status Call::Result(const grpc::Status& status) const {
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
  if (result.ok()) return result;
  const auto& trailers = context_.GetServerTrailingMetadata();
  const auto retry = trailers.find(kRetryAfterKey);
  if (retry != trailers.end()) {
    result.SetPayload(kRetryAfterPayload,
                      absl::Cord(absl::string_view(retry->second.data(),
                                                   retry->second.size())));
  }
  return result;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const absl::optional<absl::Cord> payload =
      status.GetPayload(kRetryAfterPayload);
  uint32_t milliseconds = 0;
  if (!payload.has_value() ||
      !absl::SimpleAtoi(std::string(*payload), &milliseconds)) {
    return std::nullopt;
  }
  return absl::Milliseconds(milliseconds);
}

CancelToken::CancelToken() : state_(std::make_shared<State>()) {}

void CancelToken::Cancel() { state_->Cancel(); }

void CancelToken::State::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  for (Call* call : calls_) call->Cancel();
}

void CancelToken::State::Add(Call* call) {
  absl::MutexLock lock(&mu_);
  calls_.insert(call);
  if (cancelled_) call->Cancel();
}

void CancelToken::State::Remove(Call* call) {
  absl::MutexLock lock(&mu_);
  calls_.erase(call);
}

}  // namespace baton::client
