#include "engine/cpu/packed_matrix.h"

#include <algorithm>
#include <vector>

#include "common/log.h"
#include "engine/float_convert.h"

namespace baton::engine::cpu {
namespace {

// Packs outputs [first, first + 16) of `view` into one panel.
void PackPanel(const TensorView& view, int64_t first, uint16_t* panel) {
  const int64_t inputs = view.shape[1];
  const int64_t row_bytes = inputs * DTypeBytes(view.dtype);
  const int64_t columns =
      std::min<int64_t>(kPanelColumns, view.shape[0] - first);
  std::vector<uint16_t> row(inputs);
  for (int64_t c = 0; c < columns; ++c) {
    ConvertToBf16(view.dtype,
                  view.bytes.subspan((first + c) * row_bytes, row_bytes),
                  absl::MakeSpan(row));
    for (int64_t k = 0; k < inputs; ++k) {
      panel[k / 2 * kPanelPairElements + 2 * c + k % 2] = row[k];
    }
  }
}

}  // namespace

PackedMatrix PackedMatrix::Pack(absl::Span<const TensorView* const> parts,
                                ThreadTeam& team) {
  CHECK(!parts.empty());
  PackedMatrix matrix;
  matrix.inputs_ = static_cast<int32_t>(parts.front()->shape.at(1));
  struct Source {
    const TensorView* view;
    int64_t first;
  };
  std::vector<Source> sources;
  for (const TensorView* part : parts) {
    CHECK_EQ(part->shape.size(), 2u) << part->name;
    CHECK_EQ(part->shape[1], matrix.inputs_) << part->name;
    for (int64_t first = 0; first < part->shape[0]; first += kPanelColumns) {
      sources.push_back({part, first});
    }
  }
  matrix.panels_ = static_cast<int32_t>(sources.size());
  matrix.data_.Reserve(matrix.panels_ * matrix.panel_stride());
  uint16_t* const data = matrix.data_.data();
  team.ParallelFor(matrix.panels_, [&](int64_t i, int32_t) {
    PackPanel(*sources[i].view, sources[i].first,
              data + i * matrix.panel_stride());
  });
  return matrix;
}

void PackedMatrix::ReadOutput(int32_t output, float* weights) const {
  const uint16_t* const column =
      panel(output / kPanelColumns) + output % kPanelColumns * 2;
  for (int32_t k = 0; k < inputs_; ++k) {
    weights[k] = Bf16ToFloat(column[k / 2 * kPanelPairElements + k % 2]);
  }
}

}  // namespace baton::engine::cpu
