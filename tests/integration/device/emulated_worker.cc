// Stands in for the worker program that it is given, with a device that the
// CPU plays:
//
//   emulated_worker PATH/baton-prefill FLAGS
#include <iostream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "decode_worker/decode_loop.h"
#include "dual_worker/dual_loop.h"
#include "prefill_worker/prefill_loop.h"
#include "tests/support/emulated_device/emulated_engine.h"
#include "worker/worker_process.h"

namespace baton::worker {
namespace {

WorkerProgram Prefill() {
  return {.name = "baton-prefill",
          .roles = {v1::WORKER_ROLE_PREFILL},
          .make_loop = [](const WorkerOptions& options,
                          absl::Span<const WorkerParts> parts) {
            return prefill_worker::MakePrefillLoop(options, parts.front());
          }};
}

WorkerProgram Decode() {
  return {.name = "baton-decode",
          .roles = {v1::WORKER_ROLE_DECODE},
          .make_loop = [](const WorkerOptions& options,
                          absl::Span<const WorkerParts> parts) {
            return decode_worker::MakeDecodeLoop(options, parts.front());
          }};
}

WorkerProgram Dual() {
  return {.name = "baton-worker",
          .roles = {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE},
          .make_loop = dual_worker::MakeDualLoop};
}

}  // namespace
}  // namespace baton::worker

int main(int argc, char** argv) {
  using namespace baton::worker;  // NOLINT: a program of its own
  for (WorkerProgram program : {Prefill(), Decode(), Dual()}) {
    if (argc < 2 || !absl::EndsWith(argv[1], program.name)) continue;
    program.make_engine = &baton::engine::cuda::CreateEmulatedEngine;
    return RunWorker(argc - 1, argv + 1, program);
  }
  std::cerr << "emulated_worker: the first argument is a worker's program\n";
  return 2;
}
