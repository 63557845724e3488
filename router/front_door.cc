#include "router/front_door.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/trace_context.h"
#include "router/invalid_field.h"
#include "router/request_report.h"
#include "scheduling/block_hash.h"

namespace baton::router {
namespace {

// Of an id that was not checked, for the log.
constexpr size_t kMaxIdBytes = 128;

// Of the blocks that workers have them in; none while there is no worker.
void NamePrefix(int block_size, PreparedRequest* request) {
  if (block_size <= 0) return;
  request->prefix.block_size = block_size;
  request->prefix.names = scheduling::ChainOf(request->prefix.salt, block_size,
                                              request->spec.prompt);
}

}  // namespace

uint64_t DrawNumber() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return random();
}

FrontDoor::FrontDoor(const Options& options, const ServedModel& model,
                     const ServingState* state, AccessControl* access,
                     RouterInbox* inbox, RouterMetrics* metrics,
                     const Clock* clock)
    : options_(options),
      model_(model),
      state_(state),
      access_(access),
      inbox_(inbox),
      metrics_(metrics),
      clock_(clock) {}

absl::Status FrontDoor::Rejected(const std::string& reason,
                                 const absl::Status& status) {
  metrics_->Rejected(reason);
  ReportRejection({}, reason, status);
  return status;
}

void FrontDoor::CountInvalid(absl::string_view id) {
  metrics_->Rejected("invalid");
  ReportRejection({.id = id.substr(0, kMaxIdBytes)}, "invalid",
                  absl::InvalidArgumentError(""));
}

absl::Status FrontDoor::NoRoom() {
  return Rejected("intake_full",
                  absl::ResourceExhaustedError("the router is overloaded"));
}

void FrontDoor::CountCall(const char* api) { metrics_->Called(api); }

void FrontDoor::CountReasoning(int64_t tokens) { metrics_->Thought(tokens); }

absl::Status FrontDoor::CheckOpen() {
  if (!state_->Get().draining) return absl::OkStatus();
  return Rejected("draining",
                  absl::UnavailableError("the router is shutting down"));
}

absl::Status FrontDoor::Recognize(absl::string_view authorization) {
  BATON_RETURN_IF_ERROR(CheckOpen());
  const absl::Status known = access_->Authenticate(authorization);
  if (known.ok()) return known;
  return Rejected("unauthenticated", known);
}

absl::StatusOr<FrontDoor::Admission> FrontDoor::Admit(
    absl::string_view authorization, absl::Duration* retry_after) {
  BATON_RETURN_IF_ERROR(CheckOpen());
  absl::StatusOr<std::unique_ptr<KeyGrant>> grant =
      access_->Admit(authorization, retry_after);
  if (!grant.ok()) {
    return Rejected(absl::IsUnauthenticated(grant.status()) ? "unauthenticated"
                                                            : "key_limit",
                    grant.status());
  }
  return Admission(*std::move(grant));
}

absl::Status FrontDoor::AdmitMore(const Admission& admission, int32_t more,
                                  absl::Duration* retry_after) {
  const absl::Status admitted =
      access_->AdmitMore(admission.get(), more, retry_after);
  if (admitted.ok()) return admitted;
  return Rejected("key_limit", admitted);
}

absl::Status FrontDoor::Authenticate(absl::string_view authorization) const {
  return access_->Authenticate(authorization);
}

absl::StatusOr<std::shared_ptr<const KeyRights>> FrontDoor::RightsOf(
    absl::string_view authorization) const {
  return access_->RightsOf(authorization);
}

int32_t FrontDoor::max_context() const {
  const int32_t of_workers = state_->Get().max_context;
  return of_workers > 0 ? of_workers : model_.max_context;
}

absl::StatusOr<PreparedRequest> FrontDoor::Prepare(
    const v1::GenerateRequest& request, const Admission& admission,
    absl::string_view traceparent) {
  const Serving serving = state_->Get();
  RequestLimits limits = {.max_context = max_context(),
                          .max_output_tokens = options_.max_output_tokens,
                          .targets = options_.targets,
                          .takes_grammars = serving.takes_grammars,
                          .adapters = serving.adapters.get(),
                          .rights = &admission->rights(),
                          .grammars = &grammars_,
                          .wall_time = absl::Now()};
  const int32_t of_key = admission->max_tokens();
  if (of_key > 0 &&
      (limits.max_output_tokens == 0 || of_key < limits.max_output_tokens)) {
    limits.max_output_tokens = of_key;
  }
  StartedSpan span = StartSpan(traceparent, DrawNumber);
  if (span.parent == 0) {
    span.context.sampled = IsSampled(span.context, options_.trace_sample_ratio);
  }
  const std::string own_traceparent = FormatTraceparent(span.context);
  absl::StatusOr<PreparedRequest> prepared =
      PrepareRequest(request, model_, limits, DrawNumber);
  if (!prepared.ok()) {
    metrics_->Rejected("invalid");
    // The message may quote the prompt.
    const std::string field = FieldOf(prepared.status());
    ReportRejection(
        {.id = absl::string_view(request.request_id()).substr(0, kMaxIdBytes),
         .traceparent = own_traceparent,
         .parent_span = span.parent,
         .tenant = admission->name(),
         .field = field},
        "invalid", absl::Status(prepared.status().code(), ""));
    return prepared;
  }
  if (request.has_response_format()) {
    metrics_->Formatted(FormatName(request.response_format()));
  }
  if (!prepared->answer.adapter.empty()) {
    metrics_->Adapted(prepared->answer.adapter);
  }
  prepared->spec.traceparent = own_traceparent;
  prepared->answer.parent_span = span.parent;
  prepared->prefix.salt =
      MakePrefixSalt(options_.prefix_scope, admission->tenant(),
                     prepared->prefix.salt, prepared->spec.adapter);
  if (options_.name_prefixes) NamePrefix(serving.block_size, &*prepared);
  return prepared;
}

absl::Status FrontDoor::Enter(RequestKey key, PreparedRequest request,
                              const Admission& admission,
                              absl::Time received_at, absl::Duration timeout,
                              std::shared_ptr<ClientStream> stream) {
  auto incoming = std::make_unique<IncomingRequest>();
  incoming->key = key;
  incoming->spec = std::move(request.spec);
  incoming->answer = std::move(request.answer);
  incoming->prefix = std::move(request.prefix);
  incoming->admission = admission;
  incoming->received_at = received_at;
  incoming->deadline =
      received_at + std::min(timeout, options_.request_timeout);
  incoming->stream = std::move(stream);
  auto event = RouterEvent(std::move(incoming));
  if (inbox_->TryPush(std::move(event))) return absl::OkStatus();
  // TryPush leaves what it refuses untouched.
  JudgeRejection(std::get<std::unique_ptr<IncomingRequest>>(event)->answer,
                 metrics_);
  return Rejected("inbox_full",
                  absl::ResourceExhaustedError("the router is overloaded"));
}

void FrontDoor::Leave(RequestKey key) {
  inbox_->PushUnbounded(RouterEvent(ClientGone{key}));
}

void FrontDoor::AskWhy(
    const std::string& request_id,
    std::function<void(absl::StatusOr<v1::ExplainRequestResponse>)> answer) {
  auto event = RouterEvent(ExplainQuery{request_id, std::move(answer)});
  if (inbox_->TryPush(std::move(event))) return;
  std::get<ExplainQuery>(event).answer(
      absl::UnavailableError("the router is overloaded or ending"));
}

void FrontDoor::AskCluster(
    std::function<void(absl::StatusOr<v1::GetClusterResponse>)> answer) {
  auto event = RouterEvent(ClusterQuery{std::move(answer)});
  if (inbox_->TryPush(std::move(event))) return;
  // TryPush leaves what it refuses untouched.
  std::get<ClusterQuery>(event).answer(
      absl::UnavailableError("the router is overloaded or ending"));
}

}  // namespace baton::router
