// The spans of one request, for an OpenTelemetry collector: what is kept of its
// attempts while it runs, and the spans that come of that when it ends.
//
//   the request, in the client's trace
//   +- route queue          before each attempt
//   +- prefill queue        of the attempt that goes well, as workers report
//   +- prefill
//   +- first token return
//   +- kv transfer
//   +- decode
//   +- failed attempt       each one that does not
//
// Up to the first token these follow each other without a gap, so their times
// add up to it. The ids of prefill, kv transfer and decode are those that the
// workers log (PartSpan). docs/tracing.md has the attributes. No prompt, no
// answer and no key is in them.
//
// Used by the router's loop thread only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "baton/v1/worker.pb.h"
#include "common/trace_context.h"
#include "router/tracing/span.h"
#include "scheduling/request.h"
#include "scheduling/request_lifecycle.h"

namespace baton::router {

struct IncomingRequest;
struct RequestRecord;

// The attempts at a request whose trace is recorded.
class AttemptSpans final {
 public:
  // Of more, the first ones and the last one are kept.
  static constexpr size_t kMaxAttempts = 16;

  // Times are monotonic.
  struct Attempt {
    scheduling::AttemptId id{};
    absl::Time waiting_since;
    absl::Time sent_at;
    std::string prefill_worker;  // empty: local prefill
    std::string decode_worker;
    std::string decision;
    std::string reason;
    std::string waited_for;
    // Of the first token that it gave; `gave_first_token`: of the answer's.
    std::optional<absl::Time> first_token_at;
    bool gave_first_token = false;
    std::optional<v1::Outcome> prefill;
    std::optional<v1::Outcome> decode;
    // When it did not go well.
    std::optional<absl::Time> failed_at;
    std::string cause;
    std::string why;
  };

  void Begin(Attempt attempt);
  void TokenCame(int index, absl::Time now);
  void AddOutcome(scheduling::AttemptId id, bool by_decode,
                  const v1::Outcome& outcome);
  // The attempt under way is over, and the request is placed again.
  void Failed(absl::string_view cause, absl::string_view why, absl::Time now);

  const std::vector<Attempt>& attempts() const { return attempts_; }

 private:
  std::vector<Attempt> attempts_;
};

// How a request ended.
struct RequestEnd {
  std::string model;
  scheduling::FinishReason reason = scheduling::FinishReason::kError;
  absl::Status status;
  v1::Timing timing;
  // The same moment, monotonic and for people.
  absl::Time now;
  absl::Time wall_now;
};

// The recorded trace of a request; nothing when it has none.
std::optional<TraceContext> RecordedTrace(const scheduling::RequestSpec& spec);

// REQUIRES: record.spans is there. The request's own span comes first.
std::vector<tracing::Span> MakeSpans(const RequestRecord& record,
                                     const RequestEnd& end);

// The span of a request that did not come in; none without a recorded trace.
std::vector<tracing::Span> MakeRejectionSpans(const IncomingRequest& incoming,
                                              absl::string_view why,
                                              const RequestEnd& end);

}  // namespace baton::router
