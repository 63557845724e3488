// What a worker's loop tells the routers, gathered over one turn of the loop
// and sent at its end: one frame of tokens per router, outcomes behind the
// tokens they end, and load reports as often as the contract says.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/v1/worker.pb.h"
#include "scheduling/admission.h"
#include "scheduling/request.h"
#include "scheduling/step_cost.h"
#include "scheduling/step_plan.h"
#include "worker/control_outbox.h"

namespace baton::worker {

// Who asked for an attempt. Attempt numbers are a router's own.
struct AttemptKey {
  SessionId session = 0;
  uint64_t attempt = 0;

  friend auto operator<=>(const AttemptKey&, const AttemptKey&) = default;
};

v1::FinishReason ToWire(scheduling::FinishReason reason);
v1::RefusalReason ToWire(scheduling::AdmissionVerdict verdict);
// Of MakeSequence's errors (sequence_spec.h).
v1::RefusalReason RefusalOf(const absl::Status& status);

// Leaves the field out while nothing is known.
void SetStepCost(const scheduling::StepCost& cost, v1::LoadReport* load);

class Publisher final {
 public:
  // The outbox outlives the publisher.
  explicit Publisher(ControlOutbox* outbox) : outbox_(outbox) {}

  // `index` counts the request's output tokens from 0.
  void AddToken(const AttemptKey& key, int32_t index,
                const scheduling::SampledToken& token,
                std::optional<scheduling::FinishReason> finished);
  // Of the prompt's tokens from `first` on; `top` has as many, or none.
  void AddPromptLogprobs(
      const AttemptKey& key, int32_t first, absl::Span<const float> logprobs,
      absl::Span<const std::vector<scheduling::TokenLogprob>> top);
  // What `outcome` says of the prompt goes with the attempt's token that was
  // added last. REQUIRES: one was, in this turn.
  void AddPromptReport(const AttemptKey& key, const v1::Outcome& outcome);
  void AddOutcome(const AttemptKey& key, v1::Outcome outcome);
  // An outcome that tells of a failure.
  void AddFailure(const AttemptKey& key, const std::string& error,
                  bool retryable, v1::FailureKind kind);
  void AddGrant(const AttemptKey& key, v1::Grant grant);
  void AddRefusal(const AttemptKey& key, v1::RefusalReason reason,
                  const std::string& message, bool of_grammar = false);
  void AddPairReport(SessionId session, v1::PairReport report);

  // The next Flush sends the load report, whatever it says: a router is new.
  void ReportSoon() { last_load_at_ = absl::InfinitePast(); }

  // Sends all that was added, and the load report to every router when it has
  // changed (at most every 100 ms) or is a second old.
  void Flush(absl::Time now, const v1::LoadReport& load);

 private:
  v1::WorkerMessage* NewMessage(SessionId session);

  ControlOutbox* const outbox_;
  std::map<SessionId, v1::TokenFrame> frames_;
  std::map<SessionId, std::vector<v1::WorkerMessage>> messages_;
  v1::LoadReport last_load_;
  absl::Time last_load_at_ = absl::InfinitePast();
};

}  // namespace baton::worker
