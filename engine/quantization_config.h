// The "quantization_config" of a config.json: how the matrices of a GPTQ or AWQ
// directory are stored. Plain values, constant after loading.
#pragma once

#include <cstdint>

namespace baton::engine {

class JsonFields;

struct QuantizationConfig {
  enum class Method { kNone, kGptq, kAwq };
  Method method = Method::kNone;
  int32_t bits = 4;  // 4, for GPTQ also 8
  // Inputs that share a scale; 0: all of a matrix.
  int32_t group_size = 128;
  // What is added to the zero points that the file holds.
  int32_t zero_offset = 0;
};

// Reads the field where `fields`, a config.json, has it. Fails the fields with
// Unimplemented for another method, or a variant of one, that Baton does not
// know.
QuantizationConfig ReadQuantization(JsonFields& fields);

}  // namespace baton::engine
