// baton-decode: takes KV and streams tokens by continuous batching.

#include "decode_worker/decode_loop.h"
#include "worker/worker_process.h"

int main(int argc, char** argv) {
  return baton::worker::RunWorker(
      argc, argv,
      {.name = "baton-decode",
       .roles = {baton::v1::WORKER_ROLE_DECODE},
       .make_loop = [](const baton::worker::WorkerOptions& options,
                       absl::Span<const baton::worker::WorkerParts> parts) {
         return baton::decode_worker::MakeDecodeLoop(options, parts.front());
       }});
}
