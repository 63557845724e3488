// The one place that names backends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/lora_adapter.h"

namespace baton::engine {

struct EngineOptions {
  // A Hugging Face model directory (also one with GPTQ or AWQ weights, or one
  // that `baton quantize` wrote), or a GGUF file.
  std::string model_dir;
  // "cpu", or "cuda" in builds that have it.
  std::string backend = "cpu";
  // Devices that share the model, each with some of its heads: those numbered
  // [0, tensor_parallel) of the CUDA backend. Answers do not depend on it, to
  // the bit. Sizes in bytes are those of all devices together.
  int32_t tensor_parallel = 1;
  // Worker threads of the CPU backend; 0 takes the CPUs this process may use.
  int32_t num_threads = 0;
  // Whether each of them, and the thread that calls Execute, stays on a CPU of
  // its own: for a worker that has its CPUs to itself.
  bool pin_threads = false;
  // Bytes for KV memory; rounded down to whole blocks.
  int64_t kv_memory_bytes = int64_t{256} << 20;
  // When not 0, KV memory is instead this share (at most 1) of what is free
  // once the weights are loaded: the least of what the machine has available
  // and what the control group leaves. Weights that are mapped count as taken.
  double kv_memory_share = 0;
  // Whether KV memory should have a descriptor by which other processes of this
  // host can read it (Engine::kv_descriptor). Such memory is taken from the
  // system at once (engine/cpu/memory_arena.h).
  bool share_kv_memory = false;
  // Backends whose KV lies in the memory of a device: memory of the host
  // through which KV is handed over (engine/kv_stage.h), rounded down to whole
  // blocks, no more than there is KV; 0: none. With share_kv_memory, that is
  // what has the descriptor.
  int64_t kv_staging_bytes = 0;
  // Whether that is memory of device 0 instead, for transports that go from
  // device to device. The other ones need a way to it (NVLink, PCIe).
  bool kv_staging_on_device = false;
  // Backends that record steps and run them again: steps of up to so many
  // sequences, each with a token and up to so many guesses
  // (PlannedSequence::num_drafts), are made ready for at start; no sequences:
  // as they come.
  int32_t decode_rows_at_start = 0;
  int32_t drafts_at_start = 0;
  // Tokens per KV block: 16, 32, 64 or 128.
  int32_t block_size = 16;
  // How the matrices are held: "bf16", "int8", "int4", "mxfp4" (the CPU backend
  // alone, of experts that the model's files have so), "fp8" (the CUDA backend
  // alone), or "auto": as a directory that `baton quantize` wrote holds them;
  // else the CPU backend takes "mxfp4" where it can, and the CUDA backend holds
  // each matrix as the checkpoint has it, if one of these does (MXFP4 is fp8
  // there); all others are bf16.
  std::string weights = "auto";
  // How they are held once more, in fewer bits, to guess with (Engine::
  // has_draft_weights): "int8" or "int4", of the CPU backend alone; empty: not.
  std::string draft_weights;
  // How keys and values are held: "bf16", "int8" or "fp8" (the CUDA backend
  // alone).
  std::string kv_dtype = "bf16";
  // Adapters that sequences may be computed with, each of another name.
  std::vector<AdapterSource> adapters;
  // Whether others may come (Engine::PrepareAdapter); and of which rank at
  // most, or as those at start have, for backends that make room for them in
  // advance. In [1, kMaxLoraRank].
  bool adapters_may_come = false;
  int32_t adapter_rank = 64;
  // For tests: the instruction set of the CPU backend ("portable", "avx2",
  // "avx512bf16"); empty takes the best one this CPU has.
  std::string cpu_isa;
};

// Loads the model and allocates KV memory. Errors name the file and the field:
// NotFound (no directory, file or tensor), InvalidArgument (a broken file, an
// impossible shape, an option), Unimplemented (an architecture or a feature
// that Baton does not know, or a backend that this build or that backend has
// not), FailedPrecondition (no device for the backend), ResourceExhausted (KV
// memory too small for one block or not to be had).
absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(
    const EngineOptions& options);

}  // namespace baton::engine
