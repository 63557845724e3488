#include "router/role_control.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/log.h"
#include "router/worker_messages.h"

namespace baton::router {
namespace {

using scheduling::RoleChange;
using scheduling::RoleLoad;
using scheduling::RoleWorker;
using scheduling::StepCost;
using scheduling::WorkerId;
using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;

double ToSeconds(absl::Time now) {
  return absl::ToDoubleSeconds(now - absl::UnixEpoch());
}

// Streams that a decode worker can run of sequences that are so long in the
// end.
int32_t MostStreams(const WorkerSnapshot& decode, double final_context) {
  double most = std::max(1, decode.max_sequences);
  if (final_context > 0) {
    const double tokens = double{1} * decode.total_blocks * decode.block_size;
    most = std::min(most, tokens / final_context);
  }
  return static_cast<int32_t>(std::max(1.0, most));
}

std::string ReasonOf(const RoleLoad& load) {
  return absl::StrFormat(
      "requests have %.0f prompt tokens to compute and %.0f of output",
      load.mix.computed_tokens, load.mix.output_tokens);
}

}  // namespace

RoleControl::RoleControl(const Options& options, const WorkerRegistry* registry)
    : options_(options), registry_(registry), balance_(options.balance) {}

void RoleControl::Began(const scheduling::BegunRequest& request,
                        absl::Time now) {
  mix_.Began(ToSeconds(now), request);
}

void RoleControl::Produced(int32_t prompt_tokens, int32_t before, int32_t after,
                           absl::Time now) {
  mix_.Produced(ToSeconds(now), prompt_tokens, before, after);
}

void RoleControl::Ended(const scheduling::EndedRequest& request,
                        absl::Time now) {
  mix_.Ended(ToSeconds(now), request);
}

absl::Time RoleControl::NextDue() const {
  return options_.enabled && registry_->num_dual() > 0 ? next_due_
                                                       : absl::InfiniteFuture();
}

RoleLoad RoleControl::Load(absl::Time now) const {
  RoleLoad load;
  load.mix = mix_.Mean(ToSeconds(now));
  load.allow_local_prefill = registry_->local_prefill();
  scheduling::StepCostMean prefill;
  scheduling::StepCostMean decode;
  int64_t streams = 0;
  int64_t decode_workers = 0;
  double itl_target = 0;
  for (const WorkerSnapshot& worker : registry_->snapshot().workers) {
    if (worker.role == WorkerRole::kPrefill) {
      prefill.Add(worker.step_cost);
      load.token_budget = std::max(load.token_budget, worker.token_budget);
      continue;
    }
    decode.Add(worker.step_cost);
    ++decode_workers;
    streams += MostStreams(worker, load.mix.final_context);
    itl_target = std::max(itl_target, worker.itl_target_seconds);
  }
  load.prefill_cost = prefill.Get();
  load.decode_cost = decode.Get();
  if (decode_workers > 0) {
    load.most_streams = static_cast<int32_t>(streams / decode_workers);
  }
  if (itl_target > 0) load.default_step_seconds = itl_target;
  return load;
}

bool RoleControl::MayStillJoin(absl::Span<const RoleWorker> workers,
                               absl::Time now) {
  const auto none = [&](WorkerRole role) {
    return std::none_of(
        workers.begin(), workers.end(),
        [role](const RoleWorker& worker) { return worker.role == role; });
  };
  const bool missing =
      !workers.empty() &&
      (none(WorkerRole::kDecode) ||
       (none(WorkerRole::kPrefill) && !registry_->local_prefill()));
  none_since_ = missing ? std::min(none_since_, now) : absl::InfiniteFuture();
  return missing && now < none_since_ + options_.join_grace;
}

std::vector<RoleControl::Command> RoleControl::Due(absl::Time now) {
  if (now < NextDue()) return {};
  next_due_ = now + options_.interval;
  std::vector<RoleWorker> workers;
  for (const WorkerRegistry::RoleState& each : registry_->RoleStates()) {
    workers.push_back({.id = each.id,
                       .can_change = each.dual,
                       .role = each.role,
                       .queued_tokens = each.queued_tokens,
                       .streams = each.streams});
  }
  if (MayStillJoin(workers, now)) return {};
  const RoleLoad load = Load(now);
  std::vector<Command> commands;
  for (const RoleChange& change : balance_.Decide(
           {.now = ToSeconds(now), .workers = workers, .load = load})) {
    Command command;
    command.worker = workers[change.worker].id;
    command.set_role.set_role(ToWire(change.role));
    command.set_role.set_reason(ReasonOf(load));
    LOG(INFO) << "asks worker " << registry_->NameOf(command.worker)
              << " for the role " << scheduling::WorkerRoleName(change.role)
              << ": " << command.set_role.reason();
    commands.push_back(std::move(command));
  }
  return commands;
}

}  // namespace baton::router
