// Latent attention (LatentConfig, model_config.h): attention runs on what is
// kept of a token, and each head's matrices stand before and behind it.
//
// Prompts could have keys and values of all heads made once and read often; but
// then a token would not have the same answer as a prompt's last and as the one
// that is decoded.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "engine/cpu/forward_pass.h"
#include "engine/latent_config.h"

namespace baton::engine::cpu {

void ForwardPass::ProjectLatent(const CpuLatentWeights& weights,
                                int32_t layer_index) {
  const LatentConfig& latent = config_.latent;
  const int64_t stride = weights.down.outputs();
  matmul_.Run(normed_, /*first_row=*/0, num_rows_, weights.down,
              weights.down.unit(), [&](const Strip& strip) {
                for (int32_t i = 0; i < strip.rows; ++i) {
                  std::memcpy(latent_.data() + (strip.first_row + i) * stride +
                                  strip.first_column(),
                              strip.row(i),
                              sizeof(float) * strip.panels * kPanelColumns);
                }
              });
  WriteLatentKeys(weights, layer_index);
  const int32_t head_panels =
      (latent.query_dim() + kPanelColumns - 1) / kPanelColumns;
  matmul_.Run(latent.query_rank > 0 ? query_latent_ : normed_, /*first_row=*/0,
              num_rows_, weights.queries, head_panels,
              [&](const Strip& strip) { FinishLatentQueries(strip); });
  MultiplyHeads(nope_queries_, weights.key_up, [&](const Strip& strip) {
    const int32_t first = strip.first_column() - strip.group * latent.rank;
    const int32_t n =
        std::min(strip.panels * kPanelColumns, latent.rank - first);
    for (int32_t i = 0; i < strip.rows; ++i) {
      const int64_t row = strip.first_row + i - strip.group * num_rows_;
      kernels_.round_row(strip.row(i), n,
                         queries_.data() + row * q_size_ +
                             strip.group * config_.head_dim + first);
    }
  });
}

// From the products of `down` to keys in KV memory, and what queries are made
// from.
void ForwardPass::WriteLatentKeys(const CpuLatentWeights& weights,
                                  int32_t layer_index) {
  const LatentConfig& latent = config_.latent;
  const int64_t stride = weights.down.outputs();
  constexpr auto kEps = static_cast<float>(kLatentNormEps);
  ForRows(4 * stride, [&](int32_t row, int32_t thread) {
    float* const x = latent_.data() + row * stride;
    float* const key = x + weights.key_column;
    kernels_.rms_norm(key, weights.norm.data(), latent.rank, kEps, key);
    const int32_t position = rows_[row].position;
    kernels_.rope(key + latent.rank, rope_.Cos(position), rope_.Sin(position),
                  latent.rope_dim / 2);
    pages_.WriteKey(layer_index, rows_[row].blocks, position, /*kv_head=*/0,
                    key);
    if (latent.query_rank == 0) return;
    float* const queries = row_scratch_[thread].data();
    kernels_.rms_norm(x, weights.query_norm.data(), latent.query_rank, kEps,
                      queries);
    query_latent_.Write(kernels_, row, /*first_column=*/0, queries,
                        latent.query_rank);
  });
}

// Of one head.
void ForwardPass::FinishLatentQueries(const Strip& strip) {
  const LatentConfig& latent = config_.latent;
  const int32_t head = strip.first_panel / strip.panels;
  for (int32_t i = 0; i < strip.rows; ++i) {
    const int32_t row = strip.first_row + i;
    const int32_t position = rows_[row].position;
    float* const nope = strip.row(i);
    float* const turned = nope + latent.nope_dim;
    kernels_.rope(turned, rope_.Cos(position), rope_.Sin(position),
                  latent.rope_dim / 2);
    kernels_.round_row(turned, latent.rope_dim,
                       queries_.data() + int64_t{row} * q_size_ +
                           head * config_.head_dim + latent.rank);
    nope_queries_.Write(kernels_, head * num_rows_ + row, /*first_column=*/0,
                        nope, latent.nope_dim);
  }
}

void ForwardPass::AttendLatent(const CpuLatentWeights& weights,
                               int32_t layer_index) {
  const LatentConfig& latent = config_.latent;
  attention_.Run(team_, tiles_, layer_index, /*window=*/std::nullopt,
                 /*sinks=*/{}, queries_.data(), q_size_, mixed_.bf16(0),
                 mixed_.stride(), num_rows_ * mixed_.stride());
  if (mixed_quantized_.quantized()) {
    ForRows(0, config_.num_heads * num_rows_, 2 * latent.rank,
            [&](int32_t row, int32_t thread) {
              QuantizeRow(mixed_, row, thread, mixed_quantized_);
            });
  }
  Activations& attended =
      attended_quantized_.quantized() ? attended_quantized_ : attended_;
  MultiplyHeads(
      mixed_quantized_.quantized() ? mixed_quantized_ : mixed_,
      weights.value_up, [&](const Strip& strip) {
        const int32_t n = std::min(
            strip.panels * kPanelColumns,
            (strip.group + 1) * latent.value_dim - strip.first_column());
        for (int32_t i = 0; i < strip.rows; ++i) {
          attended.Write(kernels_,
                         strip.first_row + i - strip.group * num_rows_,
                         strip.first_column(), strip.row(i), n);
        }
      });
}

void ForwardPass::MultiplyHeads(const Activations& a, const PackedMatrix& b,
                                Matmul::Finish finish) {
  const int32_t panels = b.panels() / config_.num_heads;
  std::vector<RowGroup> groups;
  for (int32_t head = 0; head < config_.num_heads; ++head) {
    groups.push_back({head * num_rows_, num_rows_, &b, head * panels, panels});
  }
  // Whole groups of activations, where values are written as such.
  const int32_t strip = panels % kGatePanels == 0 ? kGatePanels : b.unit();
  matmul_.RunGroups(a, groups, strip, finish);
}

}  // namespace baton::engine::cpu
