// Writes a model of random weights as a Hugging Face directory: config.json,
// generation_config.json, model.safetensors (or shards and their index),
// tokenizer.json, tokenizer_config.json, and synth.json, which says how it was
// made.
//
// The same options write the same bytes, whatever the number of threads. The
// weights are normal with standard deviation 0.02 (more where the model is
// narrow, and less in a deep one where a matrix writes to the residual stream),
// the norms about 1, so that activations stay sane; those of queries and keys
// are larger, so that attention chooses and greedy output does not repeat one
// word. Output rows of tokens that are not printable are small: greedy output
// is printable text that does not end by itself.
//
// Memory use is bounded whatever the size of the model. Blocks; one call per
// directory at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/dtype.h"
#include "engine/model_config.h"

namespace baton::model_tools {

struct SynthOptions {
  // Of the model, for synth.json.
  std::string shape;
  engine::ModelConfig config;
  uint64_t seed = 1;
  // BF16, F16 or F32.
  engine::DType dtype = engine::DType::kBf16;
  // The experts of gpt-oss in MXFP4, as its files have them: any of its numbers
  // is as likely as another. InvalidArgument of another model, or of one whose
  // sizes are no multiples of 32.
  bool mxfp4 = false;
  // Threads that draw; 0 takes the CPUs this process may use.
  int32_t num_threads = 0;
  // Above it, the tensors go to several files of at most about this size.
  int64_t max_shard_bytes = int64_t{4} << 30;
  // Replace a directory that was written with other options.
  bool replace = false;
};

struct SynthResult {
  int64_t parameters = 0;
  int64_t bytes = 0;  // of the tensors
  int32_t files = 0;  // with tensors
  // The directory was there already, made with the same options.
  bool existed = false;
};

// Called on the caller's thread after each few megabytes.
using SynthProgress =
    absl::FunctionRef<void(int64_t bytes_done, int64_t bytes_total)>;

// Creates `dir`, whose parent must exist. The files are written to DIR.partial,
// which is renamed at the end and removed after an error; only an end of the
// process leaves it, and the next call replaces it.
//
// AlreadyExists when `dir` holds something else (unless options.replace, and
// then only what this function once wrote); ResourceExhausted when the disk is
// full, or would be; NotFound, PermissionDenied, ... of the file system, with
// the path.
absl::StatusOr<SynthResult> WriteSynthModel(const std::string& dir,
                                            const SynthOptions& options,
                                            SynthProgress progress);

}  // namespace baton::model_tools
