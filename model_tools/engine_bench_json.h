// The report of `baton bench engine` for programs, and as a picture. Pure; any
// thread.
//
//   {"kind": "baton bench engine", "version": 1,
//    "model": "135m", "architecture": "LlamaForCausalLM", "identity": "...",
//    "backend": "cpu-avx512bf16", "weights": "bf16", "kv_dtype": "bf16",
//    "parameters": 134515008, "matrix_bytes": 269e6,
//    "ceilings": [{"threads": 1, "bf16_gflops": .., "int8_gops": ..,
//                  "memory_gbs": ..}, ..],
//    "rows": [{"test": "tg128@b4@d1024", "kind": "decode", "tokens": 128,
//              "batch": 4, "context": 1024, "threads": 1,
//              "seconds": [.., ..],             one per repetition
//              "tokens_per_second": .., "spread": .., "step_ms": ..,
//              "gflops": .., "gbs": ..,
//              "compute_share": .., "memory_share": ..},    0..1; with ceilings
//             {"test": .., "skipped": "why"}]}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/json.h"
#include "model_tools/engine_bench.h"

namespace baton::model_tools {

nlohmann::ordered_json EngineBenchJson(const EngineBenchReport& report,
                                       const std::vector<int32_t>& threads);

// An SVG file: tokens per second over the prompt's length, and over the batch.
std::string EngineBenchSvg(const EngineBenchReport& report);

}  // namespace baton::model_tools
