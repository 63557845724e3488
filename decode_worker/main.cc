// baton-decode: takes KV and streams tokens by continuous batching.

#include "decode_worker/decode_loop.h"
#include "worker/worker_process.h"

int main(int argc, char** argv) {
  return baton::worker::RunWorker(argc, argv,
                                  baton::decode_worker::DecodeProgram());
}
