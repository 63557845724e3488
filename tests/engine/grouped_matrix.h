// Matrices as GPTQ and AWQ checkpoints hold them (engine/group_blocks.h), made
// at random by tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/weight_matrix.h"
#include "tests/engine/model_dir.h"

namespace baton::engine {

// Whole numbers of `bits` bits, and a zero point and a scale for each output
// and group of inputs. Tests may change them before they are packed.
struct GroupedMatrix {
  GroupedMatrix(int64_t outputs, int64_t inputs, int64_t group_size, int bits,
                uint32_t seed);

  // What a loader must read for output `n` and input `k`; exact.
  float Weight(int64_t n, int64_t k) const;

  // The tensors of `module` in AutoGPTQ's layout; zero points are stored less
  // `zero_offset`. REQUIRES: outputs and inputs fill whole words.
  std::vector<TestTensor> Gptq(const std::string& module, uint32_t zero_offset,
                               bool with_index) const;

  // The same in AutoAWQ's "gemm" layout. REQUIRES: 4 bits.
  std::vector<TestTensor> Awq(const std::string& module) const;

  // A view of what Gptq or Awq returned, as a loader makes it.
  WeightMatrix View(const std::vector<TestTensor>& tensors,
                    WeightEncoding encoding, int32_t zero_offset) const;

  int64_t outputs, inputs, groups;
  int64_t group_size;
  int bits;
  std::vector<uint32_t> values;   // [outputs][inputs]
  std::vector<uint32_t> zeros;    // [groups][outputs]
  std::vector<uint16_t> scales;   // [groups][outputs], F16
  std::vector<int32_t> group_of;  // [inputs]
};

}  // namespace baton::engine
