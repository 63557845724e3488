#include "engine/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "common/log.h"
#include "engine/float_convert.h"
#include "engine/mxfp4.h"
#include "engine/mxfp4_rows.h"
#include "engine/packed_rows.h"
#include "engine/quantize_weights.h"

namespace baton::engine::cpu {
namespace {

// Where a panel's bytes are written.
struct PanelPlace {
  uint8_t* data = nullptr;  // step 0
  int64_t step_stride = 0;
  float* column_scales = nullptr;
  uint16_t* group_codes = nullptr;  // of the panel's first group
  int64_t group_stride = 0;         // of group_codes and exponents, elements
  uint8_t* exponents = nullptr;     // of the panel's first group

  uint8_t* step(int64_t index) const { return data + index * step_stride; }
};

void PackBf16(absl::Span<const float> rows, int32_t inputs,
              const PanelPlace& place) {
  const int64_t count = rows.size() / inputs;
  for (int32_t k = 0; k < inputs; ++k) {
    uint16_t* const step =
        reinterpret_cast<uint16_t*>(place.step(k / 2)) + k % 2;
    for (int64_t c = 0; c < count; ++c) {
      step[2 * c] = FloatToBf16(rows[c * inputs + k]);
    }
  }
}

void PackInt8(absl::Span<const float> rows, const PackedLayout& layout,
              const PanelPlace& place) {
  const int32_t inputs = layout.inputs;
  std::vector<int8_t> q(inputs);
  for (int64_t s = 0; s < layout.steps(); ++s) {
    std::fill_n(place.step(s), PackedMatrix::kStepBytes, uint8_t{128});
  }
  for (int64_t c = 0; c < static_cast<int64_t>(rows.size()) / inputs; ++c) {
    place.column_scales[c] =
        QuantizeInt8(rows.subspan(c * inputs, inputs), q.data());
    for (int32_t k = 0; k < inputs; ++k) {
      place.step(k / 4)[4 * c + k % 4] = static_cast<uint8_t>(q[k] + 128);
    }
  }
}

// `grids` has those of a row's groups after the other, or none.
void PackInt4(absl::Span<const float> rows, absl::Span<const Int4Grid> grids,
              const PackedLayout& layout, const PanelPlace& place) {
  const int32_t inputs = layout.inputs;
  const int32_t groups = layout.groups();
  std::vector<uint8_t> q(inputs);
  std::vector<uint16_t> codes(groups);
  for (int64_t c = 0; c < static_cast<int64_t>(rows.size()) / inputs; ++c) {
    place.column_scales[c] =
        QuantizeInt4(rows.subspan(c * inputs, inputs),
                     grids.subspan(grids.empty() ? 0 : c * groups,
                                   grids.empty() ? 0 : groups),
                     q.data(), codes.data());
    for (int32_t g = 0; g < groups; ++g) {
      place.group_codes[g * place.group_stride + c] = codes[g];
    }
    for (int32_t k = 0; k < inputs; ++k) {
      place.step(k / 8)[4 * c + k % 4] |= k & 4 ? q[k] << 4 : q[k];
    }
  }
}

// Groups whose numbers are none of bfloat16 become zeros, or infinite.
void PackMxfp4(const PanelSource& source, const PackedLayout& layout,
               const PanelPlace& place) {
  const int32_t groups = layout.exponents();
  std::vector<uint8_t> codes(layout.inputs);
  std::vector<uint8_t> exponents(groups);
  for (int32_t g = 0; g < groups; ++g) {
    // Outputs that there are not, too.
    std::fill_n(place.exponents + g * place.group_stride, kPanelColumns,
                static_cast<uint8_t>(kLeastMxfp4Exponent));
  }
  for (int32_t c = 0; c < source.rows; ++c) {
    CopyMxfp4Row(*source.part, source.first_row + c, codes.data(),
                 exponents.data());
    for (int32_t g = 0; g < groups; ++g) {
      uint8_t* const group = codes.data() + g * kMxfp4Group;
      int exponent = exponents[g];
      if (exponent < kLeastMxfp4Exponent) {
        std::fill_n(group, kMxfp4Group, uint8_t{0});
        exponent = kLeastMxfp4Exponent;
      } else if (exponent > kGreatestMxfp4Exponent) {
        std::fill_n(group, kMxfp4Group,
                    static_cast<uint8_t>(kInfiniteMxfp4Code));
        exponent = kInfiniteMxfp4Exponent;
      }
      place.exponents[g * place.group_stride + c] =
          static_cast<uint8_t>(exponent);
    }
    for (int32_t k = 0; k < layout.inputs; ++k) {
      // A byte has the even inputs, or the odd ones, of four.
      place.step(k / 8)[4 * c + k % 2 * 2 + k % 8 / 4] |=
          static_cast<uint8_t>(codes[k] << k % 4 / 2 * 4);
    }
  }
}

int32_t BitsOf(WeightDtype dtype) {
  switch (dtype) {
    case WeightDtype::kBf16:
      return 16;
    case WeightDtype::kInt8:
      return 8;
    case WeightDtype::kInt4:
    case WeightDtype::kMxfp4:
      return 4;
  }
  return 0;
}

static_assert(PackedLayout::kPanelOutputs == kPanelColumns);
static_assert(kInt4GroupInputs == kGroupInputs);

}  // namespace

void AppendPanels(const WeightMatrix& part, int64_t first, int64_t count,
                  int32_t unit, std::vector<PanelSource>* panels) {
  const size_t begin = panels->size();
  for (int64_t row = 0; row < count; row += kPanelColumns) {
    panels->push_back(
        {&part, first + row,
         static_cast<int32_t>(std::min<int64_t>(kPanelColumns, count - row))});
  }
  while ((panels->size() - begin) % unit != 0) panels->push_back({&part, 0, 0});
}

PackedLayout PackedShape::layout() const {
  return {BitsOf(dtype), inputs, panels, unit, dtype == WeightDtype::kMxfp4};
}

PackedSize PackedShape::size() const {
  return {layout().data_bytes(), layout().scale_bytes()};
}

PackedMatrix::PackedMatrix(const PackedShape& shape,
                           absl::Span<const std::byte> data,
                           absl::Span<const std::byte> scales)
    : dtype_(shape.dtype),
      layout_(shape.layout()),
      data_(data),
      scales_(scales) {
  CHECK(unit() > 0 && panels() % unit() == 0) << panels() << " by " << unit();
  const PackedSize size = shape.size();
  CHECK_EQ(static_cast<int64_t>(data.size()), size.data);
  CHECK_EQ(static_cast<int64_t>(scales.size()), size.scales);
}

PackedMatrix PackedMatrix::Pack(const PackedShape& shape,
                                absl::Span<const PanelSource> sources,
                                absl::Span<std::byte> data,
                                absl::Span<std::byte> scales,
                                ThreadTeam& team) {
  const PackedMatrix matrix(shape, data, scales);
  CHECK_EQ(static_cast<int32_t>(sources.size()), shape.panels);
  std::vector<std::vector<float>> rows(team.num_threads());
  team.ParallelFor(matrix.panels(), [&](int64_t i, int32_t thread) {
    const int32_t p = static_cast<int32_t>(i);
    const PanelSource& source = sources[i];
    CHECK_EQ(source.part->columns, shape.inputs) << source.part->name;
    const bool as_floats = shape.dtype != WeightDtype::kMxfp4;
    rows[thread].resize(as_floats ? int64_t{source.rows} * shape.inputs : 0);
    const absl::Span<float> values = absl::MakeSpan(rows[thread]);
    if (source.rows > 0 && as_floats) {
      ReadRows(*source.part, source.first_row, source.rows, values);
      ReleaseRows(*source.part, source.first_row, source.rows);
    }
    // The matrix is a view of const memory; this is where it is written.
    PanelPlace place;
    place.data =
        reinterpret_cast<uint8_t*>(const_cast<std::byte*>(matrix.panel(p)));
    place.step_stride = matrix.step_stride();
    if (TakesInt8(shape.dtype)) {
      place.column_scales = const_cast<float*>(matrix.column_scales(p));
    }
    if (shape.dtype == WeightDtype::kInt4) {
      place.group_codes = const_cast<uint16_t*>(matrix.group_codes(p));
    }
    place.group_stride = matrix.group_code_stride();
    switch (shape.dtype) {
      case WeightDtype::kBf16:
        return PackBf16(values, shape.inputs, place);
      case WeightDtype::kInt8:
        return PackInt8(values, matrix.layout(), place);
      case WeightDtype::kInt4:
        return PackInt4(
            values, ReadInt4Grids(*source.part, source.first_row, source.rows),
            matrix.layout(), place);
      case WeightDtype::kMxfp4:
        place.exponents = const_cast<uint8_t*>(matrix.exponents(p));
        return PackMxfp4(source, matrix.layout(), place);
    }
  });
  return matrix;
}

void PackedMatrix::ReadOutput(int32_t output, float* weights) const {
  ReadPackedOutput(layout_, data_.data(), scales_.data(), output, weights);
}

}  // namespace baton::engine::cpu
