// baton-prefill: computes prompts and hands their KV over.

#include "prefill_worker/prefill_loop.h"
#include "worker/worker_process.h"

int main(int argc, char** argv) {
  return baton::worker::RunWorker(argc, argv,
                                  baton::prefill_worker::PrefillProgram());
}
