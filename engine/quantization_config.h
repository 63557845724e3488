// The "quantization_config" of a config.json: how the matrices of a GPTQ, AWQ,
// FP8 or MXFP4 directory are stored. Plain values, constant after loading.
#pragma once

#include <cstdint>

namespace baton::engine {

class JsonFields;

struct QuantizationConfig {
  enum class Method { kNone, kGptq, kAwq, kFp8, kMxfp4 };
  Method method = Method::kNone;
  // GPTQ and AWQ.
  int32_t bits = 4;  // 4, for GPTQ also 8
  // Inputs that share a scale; 0: all of a matrix.
  int32_t group_size = 128;
  // What is added to the zero points that the file holds.
  int32_t zero_offset = 0;
  // FP8: outputs and inputs that share a scale; 0: all of an output or of a
  // matrix, as the scales' shape says.
  int32_t block_rows = 0;
  int32_t block_columns = 0;
};

// Reads the field where `fields`, a config.json, has it. Fails the fields with
// Unimplemented for another method, or a variant of one, that Baton does not
// know.
QuantizationConfig ReadQuantization(JsonFields& fields);

}  // namespace baton::engine
