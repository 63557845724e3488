// Stands in for the worker program that it is given, with a device that the
// CPU plays, and sockets in place of NCCL:
//
//   emulated_worker PATH/baton-prefill FLAGS
#include <iostream>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "decode_worker/decode_loop.h"
#include "dual_worker/dual_loop.h"
#include "prefill_worker/prefill_loop.h"
#include "tests/support/emulated_device/emulated_engine.h"
#include "tests/support/emulated_device/emulated_runtime.h"
#include "tests/support/socket_communicator.h"
#include "worker/worker_process.h"

namespace {

absl::StatusOr<std::unique_ptr<baton::kv_transfer::Communicators>>
MakeCommunicators() {
  return baton::kv_transfer::CreateSocketCommunicators(
      &baton::engine::cuda::emulated::AddWaitsForPeers);
}

}  // namespace

int main(int argc, char** argv) {
  for (baton::worker::WorkerProgram program :
       {baton::prefill_worker::PrefillProgram(),
        baton::decode_worker::DecodeProgram(),
        baton::dual_worker::DualProgram()}) {
    if (argc < 2 || !absl::EndsWith(argv[1], program.name)) continue;
    program.make_engine = &baton::engine::cuda::CreateEmulatedEngine;
    program.make_communicators = &MakeCommunicators;
    program.device_memory = baton::kv_transfer::UcxMemory::kHost;
    return baton::worker::RunWorker(argc - 1, argv + 1, program);
  }
  std::cerr << "emulated_worker: the first argument is a worker's program\n";
  return 2;
}
