#include "router/request_urgency.h"

#include <algorithm>

namespace baton::router {
namespace {

double TtftTimeLeft(const RequestRecord& record, absl::Time now) {
  constexpr double kLeast = 1e-3;
  const absl::Duration target = record.answer.ttft_target;
  if (target <= absl::ZeroDuration()) return 0;
  if (record.trace.has_first_event()) return 0;  // a retry of a stream
  return std::max(
      kLeast, absl::ToDoubleSeconds(record.trace.received_at + target - now));
}

}  // namespace

scheduling::Urgency UrgencyOf(const RequestRecord& record, absl::Time now) {
  return {
      .request_class = record.answer.request_class,
      .priority = record.answer.priority,
      .ttft_target_seconds = TtftTimeLeft(record, now),
      .itl_target_seconds = absl::ToDoubleSeconds(record.answer.itl_target)};
}

}  // namespace baton::router
