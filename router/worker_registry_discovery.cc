// WorkerRegistry: workers that are looked up come and go.
#include "common/log.h"
#include "router/worker_registry.h"

namespace baton::router {

using scheduling::kNoWorker;
using scheduling::WorkerId;
using scheduling::WorkerRole;

void WorkerRegistry::SetSource(WorkerRole role, const std::string& target,
                               const std::string& why_none) {
  sources_[{role, target}] = why_none;
  // As if they had been named: requests wait for them.
  prefill_named_ = prefill_named_ || role == WorkerRole::kPrefill;
  RefreshGrace(start_);
}

void WorkerRegistry::SetWithdrawn(int index, bool withdrawn, absl::Time now) {
  workers_[index].withdrawn = withdrawn;
  RefreshWorker(index, now);
}

void WorkerRegistry::AttemptEnded(WorkerId prefill, WorkerId decode) {
  for (WorkerId id : {prefill, decode}) {
    const int index = IndexOf(id);
    if (index >= 0) --workers_[index].attempts;
  }
}

void WorkerRegistry::Remove(int index, absl::Time now) {
  Worker& worker = workers_[index];
  CHECK(worker.id == kNoWorker) << worker.address;
  worker = Worker();
  worker.removed = true;
  // Others may fit now that it is not remembered any more.
  for (int each : UpdateMisfits(index)) {
    if (workers_[each].removed) continue;
    RefreshPairsOf(each, now);
    RefreshWorker(each, now);
  }
}

}  // namespace baton::router
