// Matrices that are packed into memory of their own, and products with them.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "engine/cpu/activations.h"
#include "engine/cpu/aligned_buffer.h"
#include "engine/cpu/matmul.h"
#include "engine/cpu/packed_matrix.h"

namespace baton::engine::cpu {

// A matrix packed into memory of its own.
struct OwnedMatrix {
  OwnedMatrix(WeightDtype dtype, int32_t unit, const WeightMatrix& source,
              ThreadTeam& team) {
    std::vector<PanelSource> panels;
    AppendPanels(source, 0, source.rows, unit, &panels);
    const PackedShape shape = {dtype, unit,
                               static_cast<int32_t>(source.columns),
                               static_cast<int32_t>(panels.size())};
    data.Reserve(shape.size().data);
    scales.Reserve(shape.size().scales);
    matrix = PackedMatrix::Pack(
        shape, panels, absl::MakeSpan(data.data(), shape.size().data),
        absl::MakeSpan(scales.data(), shape.size().scales), team);
  }

  // What it holds, [outputs][inputs].
  std::vector<float> Values() const {
    std::vector<float> values(int64_t{matrix.outputs()} * matrix.inputs());
    for (int32_t n = 0; n < matrix.outputs(); ++n) {
      matrix.ReadOutput(n, values.data() + int64_t{n} * matrix.inputs());
    }
    return values;
  }

  AlignedBuffer<std::byte> data;
  AlignedBuffer<std::byte> scales;
  PackedMatrix matrix;
};

inline std::vector<float> RandomInput(int32_t rows, int32_t inputs) {
  std::mt19937 bits(rows);
  std::normal_distribution<float> normal;
  std::vector<float> a(int64_t{rows} * inputs);
  for (float& x : a) x = normal(bits);
  return a;
}

// The product of the rows from `first` on, in any company.
inline std::vector<float> ProductOf(const Kernels& kernels, ThreadTeam& team,
                                    const std::vector<float>& a, int32_t first,
                                    int32_t rows, const PackedMatrix& b) {
  Activations input(b.dtype(), b.inputs());
  input.Reserve(rows);
  for (int32_t r = 0; r < rows; ++r) {
    input.Write(kernels, r, 0, a.data() + int64_t{first + r} * b.inputs(),
                b.inputs());
  }
  std::vector<float> c(int64_t{rows} * b.outputs(), NAN);
  Matmul matmul(kernels, team);
  matmul.Run(input, 0, rows, b, b.unit(), [&](const Strip& strip) {
    for (int32_t i = 0; i < strip.rows; ++i) {
      std::memcpy(c.data() + int64_t{strip.first_row + i} * b.outputs() +
                      strip.first_column(),
                  strip.row(i), sizeof(float) * strip.panels * kPanelColumns);
    }
  });
  return c;
}

}  // namespace baton::engine::cpu
