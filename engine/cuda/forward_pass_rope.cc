// The tables of rotations of a pass.
#include <algorithm>
#include <cstring>
#include <vector>

#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cuda/forward_pass.h"

namespace baton::engine::cuda {
namespace {

// Of positions [0, positions): cosines, then sines of each, `row` in all.
std::vector<float> TableRows(cpu::RopeTable& table, int32_t positions,
                             int64_t row) {
  table.Ensure(positions);
  std::vector<float> values(positions * row);
  for (int32_t i = 0; i < positions; ++i) {
    std::memcpy(values.data() + i * row, table.Cos(i), row * sizeof(float));
  }
  return values;
}

}  // namespace

absl::Status ForwardPass::EnsureRope(int32_t end) {
  if (end <= rope_positions_) return absl::OkStatus();
  CHECK_LE(end, config_.max_position);
  const int32_t positions = static_cast<int32_t>(
      std::min<int64_t>(config_.max_position,
                        std::max<int64_t>(end, 2 * int64_t{rope_positions_})));
  const int64_t row = config_.head_dim;
  std::vector<float> values = TableRows(rope_table_, positions, row);
  stream_.Wait();
  ForgetGraphs();  // they name the old tables
  BATON_RETURN_IF_ERROR(CopyTable(values, "the table of rotations", &rope_));
  if (!config_.layer_turns.empty()) {
    // Cosines of one, sines of zero.
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<int64_t>(i) % row < row / 2 ? 1.0f : 0.0f;
    }
    BATON_RETURN_IF_ERROR(
        CopyTable(values, "the table of no rotations", &still_));
  }
  if (config_.sliding_rope_theta.has_value()) {
    BATON_RETURN_IF_ERROR(CopyTable(
        TableRows(sliding_rope_table_, positions, row),
        "the table of rotations of layers that slide", &sliding_rope_));
  }
  rope_positions_ = positions;
  return absl::OkStatus();
}

absl::Status ForwardPass::CopyTable(const std::vector<float>& values,
                                    const char* what, DeviceBuffer* table) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  BATON_ASSIGN_OR_RETURN(*table, DeviceBuffer::Allocate(bytes, what));
  stream_.CopyToDevice(table->data(), values.data(), bytes);
  stream_.Wait();
  return absl::OkStatus();
}

const float* ForwardPass::RopeOf(int32_t layer) const {
  if (!config_.LayerTurns(layer)) return still_.as<float>();
  if (config_.sliding_rope_theta.has_value() && config_.LayerSlides(layer)) {
    return sliding_rope_.as<float>();
  }
  return rope_.as<float>();
}

}  // namespace baton::engine::cuda
