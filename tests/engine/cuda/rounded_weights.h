// Weights as a format of the CUDA backend leaves them, as floats again: what
// its tests compare with. By the functions that quantize, not by tiles.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// A row of a matrix.
std::vector<float> RoundedRow(WeightFormat format, std::vector<float> row);

// Rounds the matrices in a model.safetensors of F32, in place; the embedding
// only when the model ties it to its head.
void RoundModelFile(WeightFormat format, const std::string& file, bool tied);

// Makes the layers' matrices in a directory of F32 those of an FP8 checkpoint,
// with a scale per output.
void StoreAsFp8(const std::string& dir);

// The same of a GPTQ checkpoint of 4 bits, groups of 64 and zeros: the weights
// that "int4" makes of the directory's.
// REQUIRES: all sizes are multiples of 8.
void StoreAsGptq(const std::string& dir);

}  // namespace baton::engine::cuda
