// All that the router's loop keeps of one request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "baton/v1/worker.pb.h"
#include "common/stable_hash.h"
#include "router/client_stream.h"
#include "router/placement_log.h"
#include "router/prompt_prefix.h"
#include "router/request_spans.h"
#include "router/request_trace.h"
#include "router/router_inbox.h"
#include "router/text/detokenizer.h"
#include "router/text/stop_matcher.h"
#include "scheduling/placement.h"
#include "scheduling/request_lifecycle.h"
#include "scheduling/waiting_line.h"

namespace baton::router {

// What an attempt counts for in the registry's view of the load.
struct AttemptCharge {
  scheduling::WorkerId decode = scheduling::kNoWorker;
  int32_t decode_blocks = 0;
  scheduling::WorkerId prefill = scheduling::kNoWorker;
  int32_t prefill_tokens = 0;
  uint64_t prefill_report = 0;
  // The prefill worker, until the attempt is over; none for a local one.
  scheduling::WorkerId sent_to_prefill = scheduling::kNoWorker;
};

// Ids that routers give are unique among all of them.
inline uint64_t SeedOf(const std::string& request_id) {
  return StableHash(std::as_bytes(std::span(request_id))).low;
}

struct RequestRecord {
  RequestRecord(std::unique_ptr<IncomingRequest> incoming, int32_t max_attempts,
                const Tokenizer& tokenizer)
      : key(incoming->key),
        spec(std::move(incoming->spec)),
        answer(std::move(incoming->answer)),
        admission(std::move(incoming->admission)),
        prefix(std::move(incoming->prefix)),
        deadline(incoming->deadline),
        stream(std::move(incoming->stream)),
        lifecycle(spec.stop, max_attempts, SeedOf(spec.id)),
        detokenizer(tokenizer),
        stop_matcher(answer.stop) {
    trace.received_at = incoming->received_at;
    waiting_since = incoming->received_at;
    next_prompt_logprob = spec.prompt_logprobs.has_value()
                              ? 1
                              : static_cast<int32_t>(spec.prompt.size());
  }

  const RequestKey key;
  const scheduling::RequestSpec spec;
  const AnswerOptions answer;
  const std::shared_ptr<KeyGrant> admission;  // null in tests
  PromptPrefix prefix;
  const absl::Time deadline;
  const std::shared_ptr<ClientStream> stream;

  scheduling::RequestLifecycle lifecycle;
  Detokenizer detokenizer;
  StopMatcher stop_matcher;
  // The prompt's first token whose log-probability is wanted and did not come
  // yet; as many as the prompt has: there is none.
  int32_t next_prompt_logprob = 0;
  bool WantsPromptLogprobs() const {
    return next_prompt_logprob < static_cast<int32_t>(spec.prompt.size());
  }
  // The life cycle knows that the text has ended the answer.
  bool stop_reported = false;
  // Tokens of the answer so far; those that RoleControl was told of, once it
  // was told that the request began.
  int32_t output_tokens = 0;
  std::optional<int32_t> told_tokens;
  RequestTrace trace;
  PlacementLog placements;
  // A worker cannot keep the answer to its format.
  bool format_at_fault = false;
  // Null when its trace is not recorded.
  std::unique_ptr<AttemptSpans> spans;
  // Why it could not be placed when that was last tried, since `waiting_since`.
  std::optional<scheduling::PlacementReason> waits_for;
  absl::Time waiting_since;
  // Since when no worker that could serve has its adapter, as far as it was
  // tried.
  absl::Time no_adapter_since = absl::InfiniteFuture();
  // Where it waited until its first attempt.
  std::optional<scheduling::Lane> lane;
  // When it was turned out of a full line: when to come back.
  std::optional<absl::Duration> retry_after;

  // The attempt under way.
  std::optional<scheduling::AttemptId> attempt;
  std::optional<AttemptCharge> charge;
  v1::Grant grant;  // to be forwarded

  // When to look at the request again, besides its deadline.
  absl::Time settle_at = absl::InfiniteFuture();
  absl::Time retry_excluded_at = absl::InfinitePast();
  // Its pause after refusals ends.
  absl::Time place_at = absl::InfinitePast();

  // Delivered, not yet sent to the client.
  v1::GenerateResponse pending;
  bool touched = false;
};

}  // namespace baton::router
