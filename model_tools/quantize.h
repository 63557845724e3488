// `baton quantize`: a model as a directory that engines map instead of packing
// it at each start (engine/cpu/packed_model.h).
//
// Blocks. Holds the packed weights in memory once, and little else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace baton::model_tools {

// A file of the directory that the caller makes.
struct ExtraFile {
  std::string name;
  std::string text;
};

struct QuantizeOptions {
  // As EngineOptions::model_dir; not a directory with packed weights.
  std::string model;
  // "bf16", "int8", "int4" or "mxfp4".
  std::string to;
  // Threads that pack; 0 takes the CPUs this process may use.
  int32_t num_threads = 0;
  // Replace a directory that Quantize wrote before.
  bool replace = false;
  // Written beside what is copied: the tokenizer of a GGUF file.
  std::vector<ExtraFile> files;
};

struct QuantizeResult {
  // Of the matrices as the model has them, and of all files as written.
  int64_t parameters = 0;
  int64_t bytes = 0;
  // Whether a router finds a tokenizer there.
  bool has_tokenizer = false;
};

// Called on the caller's thread: how much of `step` is done, from 0 to 1.
using QuantizeProgress =
    absl::FunctionRef<void(const char* step, double share)>;

// Creates `dir`, whose parent must exist, as OutputDirectory does.
//
// Errors of the model as CreateEngine; Unimplemented when a GGUF file says what
// a config.json cannot; AlreadyExists when `dir` holds something else;
// ResourceExhausted when memory or the disk is full, or would be; others of the
// file system, with the path.
absl::StatusOr<QuantizeResult> Quantize(const std::string& dir,
                                        const QuantizeOptions& options,
                                        QuantizeProgress progress);

}  // namespace baton::model_tools
