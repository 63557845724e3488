// DecodeLoop: how attempts end.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "decode_worker/decode_loop.h"

namespace baton::decode_worker {

void DecodeLoop::Fail(Attempt* attempt, const std::string& error,
                      bool retryable, v1::FailureKind kind) {
  attempt->error = error;
  attempt->outcome.set_failure(kind);
  publisher_.AddFailure(attempt->key, error, retryable, kind);
  End(attempt);
}

void DecodeLoop::FailNotFinite(Attempt* attempt) {
  Fail(attempt, "the model's logits are not finite", /*retryable=*/false);
  blocks_->ClearPrefixes();  // for all one knows, it comes from there
}

void DecodeLoop::End(Attempt* attempt) {
  worker::LogAttemptEnd("decode", attempt->name,
                        {.outcome = attempt->outcome,
                         .error = attempt->error,
                         .tokens = attempt->num_tokens,
                         .sampled = attempt->sampled,
                         .total = clock_->Now() - attempt->reserved_at,
                         .landed = attempt->landed});
  scheduler_.Remove(attempt->sequence->id());
  blocks_->Leave(attempt->sequence.get(), /*keep=*/true);
  if (attempt->transfer.has_value()) {
    // No-op when it failed already; Quiesced (or Landed) follows either way.
    landings_.Abort(*attempt->transfer);
    quarantine_.Hold(*attempt->transfer,
                     std::move(attempt->sequence->blocks()));
  }
  if (IsAhead(attempt->sequence->id())) {
    held_for_ahead_.push_back(std::move(attempt->sequence->blocks()));
  }
  attempts_.Remove(attempt);
}

void DecodeLoop::CheckDeadlines() {
  const absl::Time now = clock_->Now();
  for (Attempt* attempt : attempts_.All()) {
    if (now >= attempt->deadline) {
      CountWasted(*attempt);
      Fail(attempt, "the deadline passed on the decode worker",
           /*retryable=*/false);
    } else if (now >= leases_->Until(attempt->key.session)) {
      if (!attempt->transfer.has_value()) metrics_->lease_expired->Increment();
      Fail(attempt, "the router is silent", /*retryable=*/true);
    }
  }
}

void DecodeLoop::CountWasted(const Attempt& attempt) {
  metrics_->CountWasted(attempt.prompt_computed, attempt.sampled);
}

void DecodeLoop::HandBack() {
  for (Attempt* attempt : attempts_.All()) {
    Fail(attempt, absl::StrCat("decode worker ", options_.name, " is draining"),
         /*retryable=*/true, v1::FAILURE_KIND_DRAINING);
  }
}

}  // namespace baton::decode_worker
