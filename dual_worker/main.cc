// baton-worker: computes prompts or decodes, and changes between the two while
// it runs.

#include "dual_worker/dual_loop.h"
#include "worker/worker_process.h"

int main(int argc, char** argv) {
  return baton::worker::RunWorker(argc, argv,
                                  baton::dual_worker::DualProgram());
}
