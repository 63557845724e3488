#include "worker/publisher.h"

#include <google/protobuf/util/message_differencer.h>

#include <utility>

#include "common/log.h"

namespace baton::worker {
namespace {

constexpr absl::Duration kMinLoadInterval = absl::Milliseconds(100);
constexpr absl::Duration kMaxLoadInterval = absl::Seconds(1);
constexpr uint32_t kRetryAfterMs = 50;

}  // namespace

v1::FinishReason ToWire(scheduling::FinishReason reason) {
  switch (reason) {
    case scheduling::FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case scheduling::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case scheduling::FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case scheduling::FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  LOG(FATAL) << "FinishReason " << static_cast<int>(reason);
}

v1::RefusalReason ToWire(scheduling::AdmissionVerdict verdict) {
  using scheduling::AdmissionVerdict;
  switch (verdict) {
    case AdmissionVerdict::kNoBlocks:
      return v1::REFUSAL_REASON_NO_BLOCKS;
    case AdmissionVerdict::kNoSequences:
      return v1::REFUSAL_REASON_NO_SEQUENCES;
    case AdmissionVerdict::kQueueFull:
      return v1::REFUSAL_REASON_QUEUE_FULL;
    case AdmissionVerdict::kTooLarge:
      return v1::REFUSAL_REASON_TOO_LARGE;
    case AdmissionVerdict::kDraining:
      return v1::REFUSAL_REASON_DRAINING;
    case AdmissionVerdict::kAdmit:
      break;
  }
  LOG(FATAL) << "not a refusal: " << scheduling::AdmissionVerdictName(verdict);
}

v1::RefusalReason RefusalOf(const absl::Status& status) {
  return absl::IsNotFound(status) ? v1::REFUSAL_REASON_NO_ADAPTER
                                  : v1::REFUSAL_REASON_INVALID;
}

void SetStepCost(const scheduling::StepCost& cost, v1::LoadReport* load) {
  if (!cost.known()) return;
  v1::StepCost* const out = load->mutable_step_cost();
  out->set_fixed(cost.fixed);
  out->set_per_token(cost.per_token);
  out->set_per_context_token(cost.per_context_token);
  out->set_per_sequence(cost.per_sequence);
  out->set_per_prompt_context_token(cost.per_prompt_context_token);
}

v1::WorkerMessage* Publisher::NewMessage(SessionId session) {
  return &messages_[session].emplace_back();
}

void Publisher::AddToken(const AttemptKey& key, int32_t index,
                         const scheduling::SampledToken& token,
                         std::optional<scheduling::FinishReason> finished) {
  v1::Token* wire = frames_[key.session].add_tokens();
  wire->set_attempt(key.attempt);
  wire->set_index(static_cast<uint32_t>(index));
  wire->set_id(static_cast<uint32_t>(token.token));
  wire->set_logprob(token.logprob);
  for (const scheduling::TokenLogprob& t : token.top) {
    v1::TopToken* top = wire->add_top();
    top->set_id(static_cast<uint32_t>(t.token));
    top->set_logprob(t.logprob);
  }
  if (finished.has_value()) wire->set_finish_reason(ToWire(*finished));
}

void Publisher::AddPromptLogprobs(
    const AttemptKey& key, int32_t first, absl::Span<const float> logprobs,
    absl::Span<const std::vector<scheduling::TokenLogprob>> top) {
  CHECK(top.empty() || top.size() == logprobs.size());
  v1::PromptLogprobs* wire = frames_[key.session].add_prompt_logprobs();
  wire->set_attempt(key.attempt);
  wire->set_first(static_cast<uint32_t>(first));
  wire->mutable_logprobs()->Add(logprobs.begin(), logprobs.end());
  if (top.empty()) return;
  wire->set_top(static_cast<uint32_t>(top[0].size()));
  for (const std::vector<scheduling::TokenLogprob>& of_one : top) {
    CHECK_EQ(of_one.size(), top[0].size());
    for (const scheduling::TokenLogprob& t : of_one) {
      wire->add_top_ids(static_cast<uint32_t>(t.token));
      wire->add_top_logprobs(t.logprob);
    }
  }
}

void Publisher::AddPromptReport(const AttemptKey& key,
                                const v1::Outcome& outcome) {
  auto* const tokens = frames_[key.session].mutable_tokens();
  CHECK(!tokens->empty() && tokens->rbegin()->attempt() == key.attempt);
  v1::PromptReport* report = tokens->rbegin()->mutable_prompt();
  report->set_queue_seconds(outcome.queue_seconds());
  report->set_prefill_seconds(outcome.prefill_seconds());
  report->set_cached_tokens(outcome.cached_tokens());
}

void Publisher::AddOutcome(const AttemptKey& key, v1::Outcome outcome) {
  outcome.set_attempt(key.attempt);
  *NewMessage(key.session)->mutable_outcome() = std::move(outcome);
}

void Publisher::AddFailure(const AttemptKey& key, const std::string& error,
                           bool retryable, v1::FailureKind kind) {
  v1::Outcome outcome;
  outcome.set_ok(false);
  outcome.set_error(error);
  outcome.set_retryable(retryable);
  outcome.set_failure(kind);
  AddOutcome(key, std::move(outcome));
}

void Publisher::AddGrant(const AttemptKey& key, v1::Grant grant) {
  grant.set_attempt(key.attempt);
  *NewMessage(key.session)->mutable_grant() = std::move(grant);
}

void Publisher::AddRefusal(const AttemptKey& key, v1::RefusalReason reason,
                           const std::string& message, bool of_grammar) {
  v1::Refusal* refusal = NewMessage(key.session)->mutable_refusal();
  refusal->set_attempt(key.attempt);
  refusal->set_reason(reason);
  refusal->set_message(message);
  refusal->set_retry_after_ms(kRetryAfterMs);
  refusal->set_of_grammar(of_grammar);
}

void Publisher::AddPairReport(SessionId session, v1::PairReport report) {
  *NewMessage(session)->mutable_pair() = std::move(report);
}

void Publisher::Flush(absl::Time now, const v1::LoadReport& load) {
  // Tokens first: an outcome ends the attempt that they belong to.
  for (auto& [session, frame] : frames_) {
    v1::WorkerMessage message;
    *message.mutable_tokens() = std::move(frame);
    outbox_->Send(session, std::move(message));
  }
  frames_.clear();
  for (auto& [session, messages] : messages_) {
    for (v1::WorkerMessage& message : messages) {
      outbox_->Send(session, std::move(message));
    }
  }
  messages_.clear();

  const absl::Duration age = now - last_load_at_;
  const bool changed =
      !google::protobuf::util::MessageDifferencer::Equals(load, last_load_);
  if (age < (changed ? kMinLoadInterval : kMaxLoadInterval)) return;
  v1::WorkerMessage message;
  *message.mutable_load() = load;
  outbox_->SendToAll(message);
  last_load_ = load;
  last_load_at_ = now;
}

}  // namespace baton::worker
