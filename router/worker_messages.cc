#include "router/worker_messages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "common/log.h"
#include "router/output_format/harmony_grammar.h"

namespace baton::router {
namespace {

using scheduling::FinishReason;
using scheduling::RefusalKind;
using scheduling::WorkerRole;

uint64_t AtLeastOneMs(absl::Duration duration) {
  return static_cast<uint64_t>(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(duration)));
}

// 0: none. No target that there is becomes none, or more than a worker takes.
uint32_t TargetMs(double seconds) {
  if (!(seconds > 0)) return 0;
  const double most = scheduling::kMaxTargetMs;
  return static_cast<uint32_t>(
      std::clamp(std::round(seconds * 1e3), 1.0, most));
}

void SetUrgency(const scheduling::Urgency& urgency, v1::SequenceSpec* wire) {
  const uint32_t ttft_ms = TargetMs(urgency.ttft_target_seconds);
  const uint32_t itl_ms = TargetMs(urgency.itl_target_seconds);
  if (ttft_ms > 0) wire->mutable_target()->set_ttft_ms(ttft_ms);
  if (itl_ms > 0) wire->mutable_target()->set_itl_ms(itl_ms);
  wire->set_request_class(urgency.request_class ==
                                  scheduling::RequestClass::kBatch
                              ? v1::REQUEST_CLASS_BATCH
                              : v1::REQUEST_CLASS_INTERACTIVE);
  wire->set_priority(urgency.priority);
}

void SetExpression(const scheduling::GrammarExpression& e,
                   v1::GrammarExpression* wire) {
  using Kind = scheduling::GrammarExpression::Kind;
  switch (e.kind) {
    case Kind::kLiteral:
      wire->set_literal(e.literal);
      return;
    case Kind::kByte: {
      std::string set(e.bytes.size() / 8, '\0');
      for (size_t b = 0; b < e.bytes.size(); ++b) {
        if (e.bytes.test(b)) set[b / 8] |= static_cast<char>(1 << (b % 8));
      }
      wire->set_byte_set(std::move(set));
      return;
    }
    case Kind::kSequence:
      wire->mutable_sequence()->mutable_expressions()->Assign(e.parts.begin(),
                                                              e.parts.end());
      return;
    case Kind::kChoice:
      wire->mutable_choice()->mutable_expressions()->Assign(e.parts.begin(),
                                                            e.parts.end());
      return;
    case Kind::kRepeat:
      wire->mutable_repeat()->set_expression(e.parts[0]);
      wire->mutable_repeat()->set_least(e.least);
      if (e.most != scheduling::kAnyNumber) {
        wire->mutable_repeat()->set_most(e.most);
      }
      return;
    case Kind::kRule:
      wire->set_rule(e.rule);
      return;
  }
}

void SetGrammar(const scheduling::Grammar& grammar, v1::Grammar* wire) {
  for (const scheduling::GrammarExpression& e : grammar.expressions) {
    SetExpression(e, wire->add_expressions());
  }
  wire->mutable_rules()->Assign(grammar.rules.begin(), grammar.rules.end());
}

}  // namespace

v1::SequenceSpec MakeSequenceSpec(const scheduling::RequestSpec& spec,
                                  const std::vector<TokenId>& output,
                                  absl::Duration time_left,
                                  const scheduling::Urgency& urgency) {
  v1::SequenceSpec wire;
  wire.set_request_id(spec.id);
  wire.mutable_tokens()->Reserve(
      static_cast<int>(spec.prompt.size() + output.size()));
  for (TokenId id : spec.prompt) wire.add_tokens(static_cast<uint32_t>(id));
  for (TokenId id : output) wire.add_tokens(static_cast<uint32_t>(id));
  wire.set_prompt_length(static_cast<uint32_t>(spec.prompt.size()));
  v1::ResolvedSampling* sampling = wire.mutable_sampling();
  sampling->set_temperature(spec.sampling.temperature);
  sampling->set_top_k(static_cast<uint32_t>(spec.sampling.top_k));
  sampling->set_top_p(spec.sampling.top_p);
  sampling->set_min_p(spec.sampling.min_p);
  sampling->set_repetition_penalty(spec.sampling.repetition_penalty);
  sampling->set_presence_penalty(spec.sampling.presence_penalty);
  sampling->set_frequency_penalty(spec.sampling.frequency_penalty);
  sampling->set_seed(spec.sampling.seed);
  for (const auto& [token, bias] : spec.sampling.logit_bias) {
    v1::LogitBias* wire_bias = sampling->add_logit_bias();
    wire_bias->set_token(static_cast<uint32_t>(token));
    wire_bias->set_bias(bias);
  }
  if (const auto& allowed = spec.sampling.allowed; allowed != nullptr) {
    // An id takes three bytes, mostly.
    if (3 * int64_t{allowed->num_tokens()} > allowed->vocab_size() / 8) {
      sampling->set_allowed_mask(allowed->ToBytes());
    } else {
      for (const TokenId id : allowed->Tokens()) {
        sampling->add_allowed_token_ids(static_cast<uint32_t>(id));
      }
    }
  }
  wire.set_max_output_tokens(
      static_cast<uint32_t>(spec.stop.max_output_tokens));
  for (TokenId id : spec.stop.stop_token_ids) {
    wire.add_stop_token_ids(static_cast<uint32_t>(id));
  }
  wire.set_min_output_tokens(
      static_cast<uint32_t>(spec.stop.min_output_tokens));
  wire.set_top_logprobs(static_cast<uint32_t>(spec.top_logprobs));
  wire.set_traceparent(spec.traceparent);
  wire.set_adapter(spec.adapter);
  wire.set_deadline_ms(AtLeastOneMs(time_left));
  SetUrgency(urgency, &wire);
  if (spec.grammar != nullptr) {
    SetGrammar(*spec.grammar, wire.mutable_grammar());
  }
  return wire;
}

v1::RouterMessage MakeReserve(const scheduling::SendReserve& action,
                              const v1::SequenceSpec& sequence,
                              uint64_t prefill_incarnation) {
  v1::RouterMessage message;
  v1::Reserve* reserve = message.mutable_reserve();
  reserve->set_attempt(static_cast<uint64_t>(action.attempt));
  *reserve->mutable_sequence() = sequence;
  reserve->set_local_prefill(action.local_prefill());
  reserve->set_prefill_incarnation(prefill_incarnation);
  return message;
}

v1::RouterMessage MakePrefill(const scheduling::SendPrefill& action,
                              const v1::SequenceSpec& sequence) {
  v1::RouterMessage message;
  v1::Prefill* prefill = message.mutable_prefill();
  prefill->set_attempt(static_cast<uint64_t>(action.attempt));
  *prefill->mutable_sequence() = sequence;
  return message;
}

v1::RouterMessage MakeCancel(const scheduling::CancelLeg& action) {
  v1::RouterMessage message;
  v1::Cancel* cancel = message.mutable_cancel();
  cancel->set_attempt(static_cast<uint64_t>(action.attempt));
  cancel->set_reason(action.reason);
  cancel->set_abandoned(action.abandoned);
  return message;
}

v1::Vocabulary MakeVocabulary(const Tokenizer& tokenizer, int32_t vocab_size) {
  v1::Vocabulary wire;
  const int64_t count = std::min<int64_t>(tokenizer.vocab_size(), vocab_size);
  for (TokenId id = 0; id < count; ++id) {
    std::string* const text = wire.add_texts();
    if (tokenizer.IsSpecial(id)) continue;
    std::string bytes = tokenizer.TokenBytes(id);
    if (tokenizer.IsMarker(id)) {
      *text = MarkerBytes(bytes);
    } else if (!tokenizer.has_markers() ||
               !absl::StrContains(bytes, kMarkerByte)) {
      *text = std::move(bytes);
    }
  }
  return wire;
}

v1::FinishReason ToWire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  LOG(FATAL) << "FinishReason " << static_cast<int>(reason);
}

v1::WorkerRole ToWire(WorkerRole role) {
  switch (role) {
    case WorkerRole::kPrefill:
      return v1::WORKER_ROLE_PREFILL;
    case WorkerRole::kDecode:
      return v1::WORKER_ROLE_DECODE;
  }
  LOG(FATAL) << "WorkerRole " << static_cast<int>(role);
}

RefusalKind KindOf(v1::RefusalReason reason) {
  switch (reason) {
    case v1::REFUSAL_REASON_TOO_LARGE:
    case v1::REFUSAL_REASON_INVALID:
      return RefusalKind::kNever;
    case v1::REFUSAL_REASON_DRAINING:
      return RefusalKind::kDraining;
    default:  // proto enums are open: a reason that we do not know yet
      return RefusalKind::kBusy;
  }
}

std::optional<ReportedPromptLogprobs> FromWire(const v1::PromptLogprobs& wire,
                                               size_t prompt_tokens,
                                               int32_t vocab_size) {
  const auto count = static_cast<size_t>(wire.logprobs_size());
  const uint32_t top = wire.top();
  if (wire.first() < 1 || wire.first() >= prompt_tokens ||
      count > prompt_tokens - wire.first() ||
      top > uint32_t{scheduling::kMaxTopLogprobs} ||
      static_cast<size_t>(wire.top_ids_size()) != count * top ||
      wire.top_logprobs_size() != wire.top_ids_size() ||
      std::any_of(wire.top_ids().begin(), wire.top_ids().end(),
                  [&](uint32_t id) {
                    return id >= static_cast<uint32_t>(vocab_size);
                  })) {
    return std::nullopt;
  }
  ReportedPromptLogprobs reported;
  reported.first = static_cast<int32_t>(wire.first());
  reported.logprobs.assign(wire.logprobs().begin(), wire.logprobs().end());
  if (top == 0) return reported;
  reported.top.resize(count);
  for (int i = 0; i < wire.top_ids_size(); ++i) {
    reported.top[static_cast<uint32_t>(i) / top].push_back(
        {static_cast<TokenId>(wire.top_ids(i)), wire.top_logprobs(i)});
  }
  return reported;
}

std::optional<scheduling::ReportedToken> FromWire(const v1::Token& token,
                                                  int32_t vocab_size) {
  if (token.id() >= static_cast<uint32_t>(vocab_size) ||
      token.index() > std::numeric_limits<int32_t>::max() ||
      token.top_size() > scheduling::kMaxTopLogprobs) {
    return std::nullopt;
  }
  scheduling::ReportedToken reported;
  reported.index = static_cast<int32_t>(token.index());
  reported.token = static_cast<TokenId>(token.id());
  reported.logprob = token.logprob();
  reported.top.reserve(static_cast<size_t>(token.top_size()));
  for (const v1::TopToken& top : token.top()) {
    if (top.id() >= static_cast<uint32_t>(vocab_size)) return std::nullopt;
    reported.top.push_back({static_cast<TokenId>(top.id()), top.logprob()});
  }
  if (token.finish_reason() == v1::FINISH_REASON_STOP) {
    reported.finish = FinishReason::kStop;
  } else if (token.finish_reason() == v1::FINISH_REASON_LENGTH) {
    reported.finish = FinishReason::kLength;
  }
  return reported;
}

}  // namespace baton::router
