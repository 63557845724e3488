#include "engine/cpu/packed_matrix.h"

#include <algorithm>
#include <vector>

#include "common/log.h"
#include "engine/float_convert.h"

namespace baton::engine::cpu {
namespace {

// Packs outputs [first, first + 16) of `matrix` into one panel.
void PackPanel(const WeightMatrix& matrix, int64_t first, uint16_t* panel) {
  const int64_t inputs = matrix.columns;
  const int64_t count = std::min<int64_t>(kPanelColumns, matrix.rows - first);
  std::vector<float> rows(count * inputs);
  ReadRows(matrix, first, count, absl::MakeSpan(rows));
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t k = 0; k < inputs; ++k) {
      panel[k / 2 * kPanelPairElements + 2 * c + k % 2] =
          FloatToBf16(rows[c * inputs + k]);
    }
  }
}

}  // namespace

PackedMatrix PackedMatrix::Pack(absl::Span<const WeightMatrix* const> parts,
                                ThreadTeam& team) {
  CHECK(!parts.empty());
  PackedMatrix matrix;
  matrix.inputs_ = static_cast<int32_t>(parts.front()->columns);
  struct Source {
    const WeightMatrix* part;
    int64_t first;
  };
  std::vector<Source> sources;
  for (const WeightMatrix* part : parts) {
    CHECK_EQ(part->columns, matrix.inputs_) << part->name;
    for (int64_t first = 0; first < part->rows; first += kPanelColumns) {
      sources.push_back({part, first});
    }
  }
  matrix.panels_ = static_cast<int32_t>(sources.size());
  matrix.data_.Reserve(matrix.panels_ * matrix.panel_stride());
  uint16_t* const data = matrix.data_.data();
  team.ParallelFor(matrix.panels_, [&](int64_t i, int32_t) {
    PackPanel(*sources[i].part, sources[i].first,
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
