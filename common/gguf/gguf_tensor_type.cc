#include "common/gguf/gguf_tensor_type.h"

#include <algorithm>
#include <array>

namespace baton::gguf {
namespace {

constexpr auto kTypes = std::to_array<TensorTypeInfo>({
    {kF32, "F32", 1, 4},      {kF16, "F16", 1, 2},
    {kQ4_0, "Q4_0", 32, 18},  {kQ4_1, "Q4_1", 32, 20},
    {kQ5_0, "Q5_0", 32, 22},  {kQ5_1, "Q5_1", 32, 24},
    {kQ8_0, "Q8_0", 32, 34},  {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
    {kQ4K, "Q4_K", 256, 144}, {kQ5K, "Q5_K", 256, 176},
    {kQ6K, "Q6_K", 256, 210}, {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136},
    {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},
    {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {kBf16, "BF16", 1, 2},    {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {kMxfp4, "MXFP4", 32, 17},
});

}  // namespace

const TensorTypeInfo* FindTensorType(uint32_t number) {
  const auto* const it = std::find_if(
      kTypes.begin(), kTypes.end(),
      [number](const TensorTypeInfo& type) { return type.number == number; });
  return it == kTypes.end() ? nullptr : it;
}

}  // namespace baton::gguf
