// The way in, whatever the client speaks: checks and tokenizes a request on the
// caller's thread and hands it to the router's loop. The gRPC service and the
// HTTP API are two adapters in front of it.
//
// Any thread but the loop's. Prepare takes time in proportion to the prompt
// (tokenizing: about 0.1 s for a megabyte of text) and, of a conversation, what
// its template spends, which is bounded (router/text/jinja/run.h); nothing here
// waits for the loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/clock.h"
#include "router/access/access_control.h"
#include "router/client_stream.h"
#include "router/prefix_salt.h"
#include "router/request_validation.h"
#include "router/router_inbox.h"
#include "router/router_metrics.h"
#include "router/served_model.h"
#include "router/serving_state.h"

namespace baton::router {

class FrontDoor final {
 public:
  struct Options {
    // For clients that set no deadline, and at most for those that do.
    absl::Duration request_timeout = absl::Seconds(600);
    // The operator's cap; 0: none.
    int32_t max_output_tokens = 0;
    // Of requests that give none.
    ClassTargets targets;
    // Whether prompts are looked up in the prefix caches of workers.
    bool name_prefixes = true;
    // Share of new traces that are recorded; those of clients say it
    // themselves.
    double trace_sample_ratio = 1;
    // Who shares them.
    PrefixScope prefix_scope = PrefixScope::kTenant;
  };

  // A caller that may come in, until it is destroyed.
  using Admission = std::shared_ptr<KeyGrant>;

  // Everything outlives the door.
  FrontDoor(const Options& options, const ServedModel& model,
            const ServingState* state, AccessControl* access,
            RouterInbox* inbox, RouterMetrics* metrics, const Clock* clock);

  // `authorization` is the value of the header of that name, or empty.
  // Unauthenticated, or ResourceExhausted beyond the limits of its key
  // (`*retry_after` says when to come back); Unavailable while draining.
  absl::StatusOr<Admission> Admit(absl::string_view authorization,
                                  absl::Duration* retry_after);
  // For `more` requests of the same call, before the admission is shared.
  // ResourceExhausted as above; InvalidArgument where the key never allows so
  // many.
  absl::Status AdmitMore(const Admission& admission, int32_t more,
                         absl::Duration* retry_after);
  // Whether Admit might let a caller in, who is refused and counted as there if
  // not: for what has not come whole yet. Admits nobody.
  absl::Status Recognize(absl::string_view authorization);
  // For what takes nothing but an answer.
  absl::Status Authenticate(absl::string_view authorization) const;
  // The same, for what tells of models: which of them there are for the key.
  absl::StatusOr<std::shared_ptr<const KeyRights>> RightsOf(
      absl::string_view authorization) const;
  // Otherwise everyone may come in.
  bool needs_keys() const { return access_->required(); }

  // InvalidArgument names the field (FieldOf), NotFound the model.
  // `traceparent` is the value of the header of that name, or empty.
  absl::StatusOr<PreparedRequest> Prepare(const v1::GenerateRequest& request,
                                          const Admission& admission,
                                          absl::string_view traceparent);

  // Counts a request that could not even be read.
  void CountInvalid(absl::string_view id);
  // Counts one that there is no room to read: ResourceExhausted.
  absl::Status NoRoom();
  // Counts a call whose requests are prepared, by its API.
  void CountCall(const char* api);
  // Counts output tokens with which a model thought before it answered.
  void CountReasoning(int64_t tokens);

  // Hands the request to the loop, which answers on `stream`. `timeout` is the
  // client's own. ResourceExhausted when the loop has too much to read: then
  // `stream` was not and will not be called.
  absl::Status Enter(RequestKey key, PreparedRequest request,
                     const Admission& admission, absl::Time received_at,
                     absl::Duration timeout,
                     std::shared_ptr<ClientStream> stream);

  // The client is gone or wants no more. Ignored when the request is over.
  void Leave(RequestKey key);

  // A key for Enter.
  RequestKey NewKey() { return ++last_key_; }

  // Asks the loop; `answer` is called once, on the loop's thread or, when the
  // loop is over or has too much to read, at once.
  void AskCluster(
      std::function<void(absl::StatusOr<v1::GetClusterResponse>)> answer);

  // Where a request went; as AskCluster.
  void AskWhy(
      const std::string& request_id,
      std::function<void(absl::StatusOr<v1::ExplainRequestResponse>)> answer);

  const ServedModel& model() const { return model_; }
  Serving serving() const { return state_->Get(); }
  // When the loop took its last turn; monotonic.
  absl::Time last_turn() const { return state_->last_turn(); }
  // Most tokens of one sequence, here and now.
  int32_t max_context() const;
  const Clock* clock() const { return clock_; }

 private:
  // Unavailable, and counted, while draining.
  absl::Status CheckOpen();
  // Counts and logs a request that does not come in. Returns `status`.
  absl::Status Rejected(const std::string& reason, const absl::Status& status);

  const Options options_;
  const ServedModel& model_;
  const ServingState* const state_;
  AccessControl* const access_;
  RouterInbox* const inbox_;
  RouterMetrics* const metrics_;
  const Clock* const clock_;
  std::atomic<RequestKey> last_key_{0};
  ResponseGrammars grammars_;
};

// Unpredictable enough for ids and seeds; each thread has its own generator.
uint64_t DrawNumber();

}  // namespace baton::router
