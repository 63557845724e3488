// The products of rows with the experts that they go to: each row with the
// matrix of its own expert, all in one launch.
//
// Rows lie sorted by expert, at places: a row has one for each of its experts,
// whose turn it is there. A table says which places are whose, in tiles of so
// many rows as a kernel takes. The device makes it (experts.h), as
// the host does not know what rows choose; the host knows how many tiles there
// are at most, and blocks of those that are not there end at once. A row's
// result has the bits that the matrix's own product would give (matmul.h).
//
// Pure host code but for RunExpertMatmul, which gives the kernel to a stream.
#pragma once

#include <cstdint>

#include "engine/cuda/device_runtime.h"
#include "engine/cuda/matmul.h"

namespace baton::engine::cuda {

// Neighbouring places of one expert.
struct RowTile {
  int32_t expert = 0;
  int32_t first = 0;  // place
  int32_t rows = 0;   // 0: there is no such tile
};

// How the rows of a step are cut, and what multiplies them.
struct ExpertTiling {
  MatmulKernel kernel = MatmulKernel::kStream8;
  int32_t tile_rows = 0;
  int32_t num_tiles = 0;  // at most
  // Of rows that are staged each tile has places of its own, whole ones:
  // tile t's begin with t * tile_rows. Else places follow each other.
  bool staged = false;
  int32_t places = 0;
};

// Of `turns` rows that go to `experts` of them, whichever these are: for as
// many rows each as there are on average. With `group`, kGroup is there, and no
// inputs are padded. REQUIRES: turns > 0, experts > 0.
ExpertTiling TilingOf(int32_t turns, int32_t experts, WeightFormat format,
                      bool group);
// The same for a kernel of the caller's choice, but kWide and kFlow; kGroup
// with that many rows, kGroupFewRows or kGroupRows. For tests, that compare
// them.
ExpertTiling TilingOf(int32_t turns, int32_t experts, MatmulKernel kernel,
                      int32_t group_rows = 0);
// Places for up to so many rows, at least one, that go to `per_token` experts
// each, whatever their format.
int32_t MostPlaces(int32_t rows, int32_t per_token, int32_t experts,
                   bool group);

struct ExpertMatmulArgs {
  // `w` is the first expert's; the others' follow, each as large, and so do
  // their scales and biases. `x` is staged as the tiling is; `gated` may be,
  // then, too. `rows` is the number of places.
  MatmulArgs first;
  const RowTile* tiles = nullptr;  // [num_tiles]
  int32_t num_tiles = 0;
  int32_t tile_rows = 0;
  // [places]: which row of x is that of a place; null: row p is place p's, as
  // it is of those that are staged.
  const int32_t* x_rows = nullptr;
};

// REQUIRES: as PlanMatmul; output is kStore or kSwiglu.
MatmulPlan PlanExpertMatmul(const ExpertTiling& tiling,
                            const ExpertMatmulArgs& args, MatmulOutput output);

// Plans and runs.
void RunExpertMatmul(const ExpertTiling& tiling, const ExpertMatmulArgs& args,
                     MatmulOutput output, StreamHandle* stream);

}  // namespace baton::engine::cuda
