#include "engine/latent_weights.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/matrix_views.h"

namespace baton::engine {

void SetKeyAndValueViews(const ModelConfig& config, WeightMatrix both,
                         LatentWeights& weights) {
  const LatentConfig& latent = config.latent;
  const auto base = std::make_shared<const WeightMatrix>(std::move(both));
  const int64_t stride = latent.nope_dim + latent.value_dim;
  weights.key_up =
      TurnedHeads(base, {0, latent.nope_dim, stride}, config.num_heads);
  weights.value_up =
      PartOf(base, {latent.nope_dim, latent.value_dim, stride},
             int64_t{config.num_heads} * latent.value_dim, 0, latent.rank);
}

LatentWeights TakeLatent(TensorFinder& finder, const ModelConfig& config,
                         const std::string& attention) {
  const LatentConfig& latent = config.latent;
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_heads;
  LatentWeights w;
  int64_t query_inputs = hidden;
  const char* queries = "q_proj";
  if (latent.query_rank > 0) {
    query_inputs = latent.query_rank;
    queries = "q_b_proj";
    w.query_down =
        finder.TakeMatrix(attention + "q_a_proj", latent.query_rank, hidden);
    w.query_norm =
        finder.Take(attention + "q_a_layernorm.weight", {latent.query_rank});
  }
  w.queries = finder.TakeMatrix(attention + queries, heads * latent.query_dim(),
                                query_inputs);
  w.down = finder.TakeMatrix(attention + "kv_a_proj_with_mqa",
                             latent.rank + latent.rope_dim, hidden);
  w.norm = finder.Take(attention + "kv_a_layernorm.weight", {latent.rank});
  if (config.rope_interleaved) {
    w.queries.interleaved_head = latent.query_dim();
    w.queries.interleaved_first = latent.nope_dim;
    w.down.interleaved_head = latent.rank + latent.rope_dim;
    w.down.interleaved_first = latent.rank;
  }
  WeightMatrix both = finder.TakeMatrix(
      attention + "kv_b_proj", heads * (latent.nope_dim + latent.value_dim),
      latent.rank);
  // What could not be taken has no rows to look at.
  if (finder.status().ok()) SetKeyAndValueViews(config, std::move(both), w);
  return w;
}

}  // namespace baton::engine
