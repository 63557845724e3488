// Random matrices in MXFP4, as the files of gpt-oss and GGUF files have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "engine/mxfp4.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

struct Mxfp4Matrix {
  // Exponents are of [first_exponent, first_exponent + 8).
  Mxfp4Matrix(int64_t outputs, int64_t inputs, uint32_t seed,
              int first_exponent = 118)
      : outputs(outputs), inputs(inputs) {
    std::mt19937 bits(seed);
    for (int64_t i = 0; i < outputs * inputs; ++i) {
      codes.push_back(static_cast<uint8_t>(bits() % 16));
    }
    for (int64_t i = 0; i < outputs * inputs / kMxfp4Group; ++i) {
      exponents.push_back(static_cast<uint8_t>(first_exponent + bits() % 8));
    }
  }

  // A view of all outputs, or of every other one from `first` on. The matrix
  // outlives it, and makes one of each kind at a time.
  WeightMatrix View() {
    values.clear();
    for (size_t i = 0; i < codes.size(); i += 2) {
      values.push_back(static_cast<std::byte>(codes[i] | codes[i + 1] << 4));
    }
    WeightMatrix view = Named(WeightEncoding::kMxfp4, values);
    view.scales.dtype = DType::kU8;
    view.scales.bytes = absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(exponents.data()), exponents.size());
    view.run = {0, outputs, outputs};
    return view;
  }
  WeightMatrix EveryOther(int64_t first) {
    WeightMatrix view = View();
    view.rows = outputs / 2;
    view.run = {first, 1, 2};
    return view;
  }
  WeightMatrix GgufView() {
    blocks.clear();
    constexpr int64_t kHalf = kMxfp4Group / 2;
    for (size_t group = 0; group < exponents.size(); ++group) {
      blocks.push_back(static_cast<std::byte>(exponents[group]));
      const uint8_t* const of = codes.data() + group * kMxfp4Group;
      for (int64_t i = 0; i < kHalf; ++i) {
        blocks.push_back(static_cast<std::byte>(of[i] | of[i + kHalf] << 4));
      }
    }
    return Named(WeightEncoding::kGgufMxfp4, blocks);
  }

  int64_t outputs, inputs;
  std::vector<uint8_t> codes;      // [outputs][inputs]
  std::vector<uint8_t> exponents;  // [outputs][inputs / 32]
  std::vector<std::byte> values, blocks;

 private:
  WeightMatrix Named(WeightEncoding encoding,
                     const std::vector<std::byte>& bytes) const {
    WeightMatrix view;
    view.name = "experts";
    view.encoding = encoding;
    view.rows = outputs;
    view.columns = inputs;
    view.values.dtype = DType::kU8;
    view.values.bytes = bytes;
    return view;
  }
};

}  // namespace baton::engine
