// baton-prefill: computes prompts and hands their KV over.

#include "kv_transfer/handoff_sender.h"
#include "prefill_worker/prefill_loop.h"
#include "worker/worker_process.h"

int main(int argc, char** argv) {
  return baton::worker::RunWorker(
      argc, argv,
      {.name = "baton-prefill",
       .roles = {baton::v1::WORKER_ROLE_PREFILL},
       .make_loop = [](const baton::worker::WorkerOptions& options,
                       absl::Span<const baton::worker::WorkerParts> parts) {
         return baton::prefill_worker::MakePrefillLoop(options, parts.front());
       }});
}
