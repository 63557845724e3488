// baton-prefill: computes prompts and hands their KV over.

#include "kv_transfer/handoff_sender.h"
#include "prefill_worker/prefill_loop.h"
#include "worker/worker_process.h"

int main(int argc, char** argv) {
  return baton::worker::RunWorker(argc, argv, baton::v1::WORKER_ROLE_PREFILL,
                                  baton::prefill_worker::MakePrefillLoop);
}
