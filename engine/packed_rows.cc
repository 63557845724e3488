#include "engine/packed_rows.h"

#include <algorithm>
#include <cstring>

#include "engine/float_convert.h"
#include "engine/mxfp4.h"

namespace baton::engine {
namespace {

// An output's weights and scales, in memory of any alignment.
class PackedOutput final {
 public:
  PackedOutput(const PackedLayout& layout, const std::byte* data,
               const std::byte* scales, int64_t output)
      : layout_(layout),
        step_(data + layout.PanelOffset(PanelOf(output)) + 4 * Column(output)),
        scale_(layout.column_scale_bytes() == 0
                   ? nullptr
                   : scales + layout.ColumnScaleOffset(PanelOf(output)) +
                         Column(output) * int64_t{sizeof(float)}),
        exponents_(!layout.mxfp4
                       ? nullptr
                       : scales + layout.ExponentOffset(PanelOf(output)) +
                             Column(output)),
        grids_(layout.bits != 4 || layout.mxfp4
                   ? nullptr
                   : scales + layout.GridOffset(PanelOf(output)) +
                         Column(output) * int64_t{sizeof(uint16_t)}) {}

  // The 4 bytes that step `index` has of it.
  const std::byte* Step(int64_t index) const {
    return step_ + index * layout_.step_stride();
  }
  uint16_t Bf16(int32_t input) const {
    uint16_t bits;
    std::memcpy(&bits, Step(input / 2) + 2 * (input % 2), sizeof(bits));
    return bits;
  }
  int8_t Int8(int32_t input) const {
    return static_cast<int8_t>(Byte(input / 4, input) - 128);
  }
  int32_t Int4(int32_t input) const {
    const int32_t byte = Byte(input / 8, input);
    return input & 4 ? byte >> 4 : byte & 15;
  }
  unsigned Mxfp4(int32_t input) const {
    uint32_t word;
    std::memcpy(&word, Step(input / 8), sizeof(word));
    return word >> (input % 2 * 16 + input % 8 / 2 * 4) & 15;
  }
  // All of them, a byte each.
  void CopyInt4(int32_t inputs, uint8_t* out) const {
    for (int32_t first = 0; first < inputs; first += 8) {
      uint32_t word;
      std::memcpy(&word, Step(first / 8), sizeof(word));
      const uint64_t bytes =
          (word & 0x0f0f0f0fu) | static_cast<uint64_t>(word >> 4 & 0x0f0f0f0fu)
                                     << 32;
      std::memcpy(out + first, &bytes, std::min(8, inputs - first));
    }
  }
  float Scale() const {
    float scale;
    std::memcpy(&scale, scale_, sizeof(scale));
    return scale;
  }
  int Exponent(int64_t group) const {
    return std::to_integer<int>(exponents_[group * layout_.grid_stride()]);
  }
  uint16_t Code(int32_t group) const {
    uint16_t code;
    std::memcpy(&code,
                grids_ + group * layout_.grid_stride() * int64_t{sizeof(code)},
                sizeof(code));
    return code;
  }

 private:
  static int32_t PanelOf(int64_t output) {
    return static_cast<int32_t>(output / PackedLayout::kPanelOutputs);
  }
  static int64_t Column(int64_t output) {
    return output % PackedLayout::kPanelOutputs;
  }
  int32_t Byte(int64_t step, int32_t input) const {
    return static_cast<int32_t>(Step(step)[input % 4]);
  }

  const PackedLayout& layout_;
  const std::byte* const step_;
  const std::byte* const scale_;
  const std::byte* const exponents_;
  const std::byte* const grids_;
};

PackedOutput OutputOf(const WeightMatrix& m, int64_t row) {
  return PackedOutput(m.packed, m.values.bytes.data(), m.scales.bytes.data(),
                      m.run.At(row));
}

void Read(const PackedLayout& layout, const PackedOutput& output,
          float* weights) {
  if (layout.mxfp4) {
    for (int32_t k = 0; k < layout.inputs; ++k) {
      weights[k] = Bf16ToFloat(
          Mxfp4ToBf16(output.Mxfp4(k), output.Exponent(k / kMxfp4Group)));
    }
    return;
  }
  switch (layout.bits) {
    case 16:
      for (int32_t k = 0; k < layout.inputs; ++k) {
        weights[k] = Bf16ToFloat(output.Bf16(k));
      }
      return;
    case 8: {
      const float scale = output.Scale();
      for (int32_t k = 0; k < layout.inputs; ++k) {
        weights[k] = scale * static_cast<float>(output.Int8(k));
      }
      return;
    }
    default: {
      const float scale = output.Scale();
      for (int32_t k = 0; k < layout.inputs; ++k) {
        const uint16_t code = output.Code(k / kInt4GroupInputs);
        weights[k] = static_cast<float>(output.Int4(k) - Int4Zero(code)) *
                     Int4Scale(code) * scale;
      }
    }
  }
}

}  // namespace

void ReadPackedOutput(const PackedLayout& layout, const std::byte* data,
                      const std::byte* scales, int64_t output, float* weights) {
  Read(layout, PackedOutput(layout, data, scales, output), weights);
}

void ReadPackedRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                    absl::Span<float> out) {
  for (int64_t i = 0; i < count; ++i) {
    Read(matrix.packed, OutputOf(matrix, row + i),
         out.data() + i * matrix.columns);
  }
}

void CopyPackedRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                    std::byte* out) {
  const auto inputs = static_cast<int32_t>(matrix.columns);
  for (int64_t i = 0; i < count; ++i) {
    const PackedOutput output = OutputOf(matrix, row + i);
    switch (matrix.packed.bits) {
      case 16: {
        auto* const to = reinterpret_cast<uint16_t*>(out) + i * inputs;
        for (int32_t k = 0; k < inputs; ++k) to[k] = output.Bf16(k);
        break;
      }
      case 8: {
        auto* const to = reinterpret_cast<int8_t*>(out) + i * inputs;
        for (int32_t k = 0; k < inputs; ++k) to[k] = output.Int8(k);
        break;
      }
      default:
        output.CopyInt4(inputs, reinterpret_cast<uint8_t*>(out) + i * inputs);
    }
  }
}

float PackedScale(const WeightMatrix& matrix, int64_t row) {
  return OutputOf(matrix, row).Scale();
}

std::vector<Int4Grid> ReadPackedGrids(const WeightMatrix& matrix, int64_t row,
                                      int64_t count) {
  std::vector<Int4Grid> grids;
  for (int64_t i = 0; i < count; ++i) {
    const PackedOutput output = OutputOf(matrix, row + i);
    for (int32_t group = 0; group < matrix.packed.groups(); ++group) {
      const uint16_t code = output.Code(group);
      grids.push_back({Int4Scale(code) * output.Scale(), Int4Zero(code)});
    }
  }
  return grids;
}

void CopyPackedMxfp4Codes(const WeightMatrix& matrix, int64_t row,
                          uint8_t* codes) {
  const PackedOutput output = OutputOf(matrix, row);
  for (int32_t k = 0; k < matrix.packed.inputs; ++k) {
    codes[k] = static_cast<uint8_t>(output.Mxfp4(k));
  }
}

void CopyPackedMxfp4Exponents(const WeightMatrix& matrix, int64_t row,
                              uint8_t* exponents) {
  const PackedOutput output = OutputOf(matrix, row);
  for (int32_t group = 0; group < matrix.packed.exponents(); ++group) {
    exponents[group] = static_cast<uint8_t>(output.Exponent(group));
  }
}

}  // namespace baton::engine
