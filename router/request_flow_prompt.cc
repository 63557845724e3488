// RequestFlow: what workers say of a prompt's own tokens.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/answer_logprobs.h"
#include "router/request_flow.h"
#include "router/worker_messages.h"

namespace baton::router {
namespace {

using scheduling::AttemptId;
using scheduling::kNoWorker;
using scheduling::WorkerId;

// Log-probabilities in one response, about: a client takes responses of up to
// 4 MB by default.
constexpr int32_t kPerResponse = 4096;

}  // namespace

bool RequestFlow::ComputesPrompt(const RequestRecord& record,
                                 WorkerId worker) const {
  const WorkerId prefill = record.lifecycle.prefill_worker();
  return worker ==
         (prefill != kNoWorker ? prefill : record.lifecycle.decode_worker());
}

void RequestFlow::TakePromptLogprobs(const Cluster::News& news,
                                     absl::Time now) {
  for (const v1::PromptLogprobs& wire :
       news.message.tokens().prompt_logprobs()) {
    RequestRecord* const record = OwnerOf(wire.attempt());
    // One that is over all but for its outcomes has all that it wanted.
    if (record == nullptr || !record->WantsPromptLogprobs() ||
        !ComputesPrompt(*record, news.worker)) {
      continue;
    }
    const auto reported =
        FromWire(wire, record->spec.prompt.size(), model_.vocab_size);
    if (!reported.has_value() ||
        reported->first > record->next_prompt_logprob) {
      FailLeg(*record, news,
              absl::StrCat("gave ", wire.logprobs_size(),
                           " log-probabilities of the prompt from token ",
                           wire.first(), " on"),
              now);
      continue;
    }
    if (!SendPromptLogprobs(*record, *reported)) {
      Apply(*record,
            record->lifecycle.Abort(
                absl::ResourceExhaustedError("the client reads too slowly")),
            now);
    }
  }
}

bool RequestFlow::SendPromptLogprobs(RequestRecord& record,
                                     const ReportedPromptLogprobs& reported) {
  const auto end =
      reported.first + static_cast<int32_t>(reported.logprobs.size());
  const int32_t most =
      std::max(1, kPerResponse / (1 + record.spec.prompt_logprobs.value_or(0)));
  while (record.next_prompt_logprob < end) {
    v1::GenerateResponse response;
    response.set_request_id(record.spec.id);
    const int32_t until = std::min(end, record.next_prompt_logprob + most);
    for (int32_t& i = record.next_prompt_logprob; i < until; ++i) {
      const int32_t place = i - reported.first;
      SetLogprobs(record.spec.prompt[i], reported.logprobs[place],
                  reported.top.empty()
                      ? absl::Span<const scheduling::TokenLogprob>()
                      : reported.top[place],
                  *model_.tokenizer, response.add_prompt_logprobs());
    }
    if (!record.stream->Send(std::move(response))) return false;
  }
  return true;
}

void RequestFlow::FailLeg(RequestRecord& record, const Cluster::News& news,
                          const std::string& what, absl::Time now) {
  const AttemptId attempt = *record.attempt;
  const std::string error =
      absl::StrCat("worker ", news.worker_name, " ", what);
  cluster_->Send(news.worker, MakeCancel({attempt, news.worker, error}));
  Apply(record,
        record.lifecycle.LegEnded(
            attempt, news.worker,
            {.ok = false, .error = error, .retryable = true}, now),
        now);
}

}  // namespace baton::router
