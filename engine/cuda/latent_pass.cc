#include "engine/cuda/latent_pass.h"

#include <algorithm>

#include "common/log.h"
#include "common/status_macros.h"
#include "engine/latent_config.h"

namespace baton::engine::cuda {
namespace {

// Rows of each head that are multiplied at a time.
constexpr int32_t kHeadRows = 512;

// In the order of LatentPass's buffers.
struct LatentBytes {
  int64_t query_latent, head_queries, nope, sums, head_made, tiles, x_rows;

  LatentBytes(const ModelConfig& config, int32_t heads, int64_t max_rows) {
    const LatentConfig& latent = config.latent;
    const int64_t head_rows = max_rows * heads;
    const int64_t places = std::min<int64_t>(max_rows, kHeadRows) * heads;
    query_latent = StagedRows(max_rows) * PaddedInputs(latent.query_rank) * 2;
    head_queries = head_rows * latent.query_dim() * 4;
    nope = head_rows * PaddedInputs(latent.nope_dim) * 2;
    sums = head_rows * PaddedInputs(latent.rank) * 2;
    head_made = places * std::max(latent.rank, latent.value_dim) * 4;
    // There are no more tiles than places.
    tiles = places * int64_t{sizeof(RowTile)};
    x_rows = places * int64_t{sizeof(int32_t)};
  }
  int64_t all() const {
    return query_latent + head_queries + nope + sums + head_made + tiles +
           x_rows;
  }
};

}  // namespace

LatentPass::LatentPass(const ModelConfig& config, const Shard& shard,
                       const KvLayout& layout, int32_t max_rows)
    : config_(config),
      heads_(shard.Heads(config)),
      layout_(layout),
      max_rows_(max_rows) {
  CHECK(config.IsLatent());
}

int64_t LatentPass::DeviceBytes() const {
  return LatentBytes(config_, heads_, max_rows_).all();
}

absl::Status LatentPass::Allocate(Stream& stream) {
  const LatentBytes bytes(config_, heads_, max_rows_);
  const struct {
    DeviceBuffer* buffer;
    int64_t bytes;
  } items[] = {{&query_latent_, bytes.query_latent},
               {&head_queries_, bytes.head_queries},
               {&nope_, bytes.nope},
               {&sums_, bytes.sums},
               {&head_made_, bytes.head_made},
               {&tiles_, bytes.tiles},
               {&x_rows_, bytes.x_rows}};
  for (const auto& item : items) {
    BATON_ASSIGN_OR_RETURN(
        *item.buffer,
        DeviceBuffer::Allocate(item.bytes, "a step's latent attention"));
    // What pads rows is zero from the beginning on.
    if (item.bytes > 0) stream.Fill(item.buffer->data(), 0, item.bytes);
  }
  return absl::OkStatus();
}

void LatentPass::Project(const DeviceLatent& w, const Layer& layer,
                         int32_t rows, const DeviceKernels& kernels,
                         Stream& stream) {
  const LatentConfig& latent = config_.latent;
  MatmulArgs down;
  down.w = w.down;
  down.x = layer.normed;
  down.x_stride = layer.normed_stride;
  down.x_order = layer.order;
  down.rows = rows;
  down.out = layer.made;
  down.out_stride = w.down.outputs;
  RunMatmul(down, MatmulOutput::kStore, kernels, stream.handle());

  LatentKeysArgs keys;
  keys.from = layer.made;
  keys.places = layer.places;
  keys.rows = rows;
  keys.query_rank = latent.query_rank;
  keys.rank = latent.rank;
  keys.rope_dim = latent.rope_dim;
  keys.query_norm = w.query_norm;
  keys.norm = w.norm;
  keys.eps = static_cast<float>(kLatentNormEps);
  keys.rope = layer.rope;
  keys.rope_stride = config_.head_dim;
  keys.queries = query_latent_.as<uint16_t>();
  keys.query_stride = PaddedInputs(latent.query_rank);
  keys.query_order = layer.order;
  keys.pages = layer.pages;
  keys.page_bytes = layout_.page_bytes();
  keys.scales_offset = layout_.KeyScalesOffset();
  keys.block_size = layout_.block_size;
  keys.stored_head_dim = layout_.stored_head_dim();
  keys.kv_dtype = layout_.dtype;
  keys.block_tables = layer.block_tables;
  RunLatentKeys(keys, stream.handle());

  MatmulArgs queries = down;
  queries.w = w.queries;
  if (latent.query_rank > 0) {
    queries.x = keys.queries;
    queries.x_stride = keys.query_stride;
  }
  queries.out = head_queries_.as<float>();
  queries.out_stride = w.queries.outputs;
  RunMatmul(queries, MatmulOutput::kStore, kernels, stream.handle());

  LatentQueriesArgs finish;
  finish.from = queries.out;
  finish.places = layer.places;
  finish.rows = rows;
  finish.heads = heads_;
  finish.nope_dim = latent.nope_dim;
  finish.rope_dim = latent.rope_dim;
  finish.rope = layer.rope;
  finish.rope_stride = config_.head_dim;
  finish.nope = nope_.as<uint16_t>();
  finish.nope_stride = PaddedInputs(latent.nope_dim);
  finish.queries = layer.queries;
  finish.rank = latent.rank;
  finish.stored_head_dim = layout_.stored_head_dim();
  RunLatentQueries(finish, stream.handle());

  RoundHeadsArgs round;
  round.to = layer.queries;
  round.head_step = layout_.stored_head_dim();
  round.row_stride = int64_t{heads_} * round.head_step;
  MultiplyHeads(w.key_up, finish.nope, finish.nope_stride, round, rows, stream);
}

void LatentPass::Finish(const DeviceLatent& w, int32_t rows, uint16_t* attended,
                        int64_t attended_stride, InputOrder order,
                        Stream& stream) {
  RoundHeadsArgs round;
  round.to = attended;
  round.head_step = config_.latent.value_dim;
  round.row_stride = attended_stride;
  round.order = order;
  MultiplyHeads(w.value_up, out(), out_step(), round, rows, stream);
}

void LatentPass::MultiplyHeads(const DeviceMatrix& w, const uint16_t* x,
                               int64_t stride, RoundHeadsArgs round,
                               int32_t rows, Stream& stream) {
  for (int32_t first = 0; first < rows; first += kHeadRows) {
    const int32_t count = std::min(kHeadRows, rows - first);
    const ExpertTiling tiling = HeadTilingOf(count, heads_, w.format);
    if (table_rows_ != count || table_tile_rows_ != tiling.tile_rows) {
      HeadTilesArgs tiles;
      tiles.rows = count;
      tiles.heads = heads_;
      tiles.tiling = tiling;
      tiles.tiles = tiles_.as<RowTile>();
      tiles.x_rows = x_rows_.as<int32_t>();
      RunHeadTiles(tiles, stream.handle());
      table_rows_ = count;
      table_tile_rows_ = tiling.tile_rows;
    }
    ExpertMatmulArgs product;
    product.tiles = tiles_.as<RowTile>();
    product.num_tiles = tiling.num_tiles;
    product.tile_rows = tiling.tile_rows;
    product.x_rows = x_rows_.as<int32_t>();
    product.first.w = w;
    product.first.x = x + first * heads_ * stride;
    product.first.x_stride = stride;
    product.first.rows = tiling.places;
    product.first.out = head_made_.as<float>();
    product.first.out_stride = w.outputs;
    RunExpertMatmul(tiling, product, MatmulOutput::kStore, stream.handle());
    round.from = product.first.out;
    round.rows = count;
    round.heads = heads_;
    round.size = w.outputs;
    round.first_row = first;
    RunRoundHeads(round, stream.handle());
  }
}

}  // namespace baton::engine::cuda
