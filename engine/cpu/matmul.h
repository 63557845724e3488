// The product of all rows of a step with a packed weight matrix, spread over
// the team. Called by the engine's thread.
//
// The result is not stored as a matrix: it comes in strips, some rows times
// some neighbouring panels, to a function that does what comes next with it
// while it is in the cache (adds it to the residual stream, rotates and stores
// keys, ...).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/cpu/activations.h"
#include "engine/cpu/aligned_buffer.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/cpu/thread_team.h"

namespace baton::engine::cpu {

// Rows [first_row, first_row + rows) of the columns of panels [first_panel,
// first_panel + panels). `values` may be overwritten.
struct Strip {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_panel = 0;
  int32_t panels = 0;
  float* values = nullptr;
  int64_t stride = 0;  // between rows
  int32_t thread = 0;  // of the team, who runs this
  int32_t group = 0;   // which one of RunGroups

  float* row(int32_t i) const { return values + i * stride; }
  int32_t first_column() const { return first_panel * kPanelColumns; }
};

// Rows [first_row, first_row + rows) that are multiplied with a matrix of their
// own, or with panels of one that they share.
struct RowGroup {
  int32_t first_row = 0;
  int32_t rows = 0;
  const PackedMatrix* b = nullptr;
  int32_t first_panel = 0;
  int32_t panels = 0;  // 0: all

  int32_t end_panel() const {
    return panels > 0 ? first_panel + panels : b->panels();
  }
};

class Matmul final {
 public:
  // Runs on a thread of the team, for several strips at the same time.
  using Finish = absl::FunctionRef<void(const Strip& strip)>;

  Matmul(const Kernels& kernels, ThreadTeam& team);

  // Calls `finish` once for each strip of the rows [first_row, first_row +
  // rows) of `a` times `b`. Strips start at multiples of `strip_panels` and are
  // as wide, but the last one. A value of the result depends on its row and
  // column alone, bitwise.
  // REQUIRES: `a` holds b.inputs() columns in the form of b.dtype();
  // strip_panels is a multiple of b.unit().
  void Run(const Activations& a, int32_t first_row, int32_t rows,
           const PackedMatrix& b, int32_t strip_panels, Finish finish);

  // The same of several groups of rows; those without rows are passed over.
  // REQUIRES: as Run; the matrices are of one shape and dtype, and the groups
  // of as many panels, which begin at multiples of the unit.
  void RunGroups(const Activations& a, absl::Span<const RowGroup> groups,
                 int32_t strip_panels, Finish finish);

 private:
  // Computes a strip into strip.values. `next_panel`: where its thread is
  // likely to go on, perhaps behind the end of the matrix.
  void ComputeStrip(const Activations& a, const PackedMatrix& b,
                    const Strip& strip, int32_t next_panel);
  // The same of MXFP4, with a kernel that does not unpack it.
  void ComputeFewMxfp4(const Activations& a, const PackedMatrix& b,
                       const Strip& strip) const;

  const Kernels& kernels_;
  ThreadTeam& team_;
  std::vector<AlignedBuffer<float>> scratch_;  // a strip per thread
  // MXFP4: what a call of a kernel takes of it, per thread.
  std::vector<AlignedBuffer<uint16_t>> unpacked_;
  // Of the groups of the current call, the first item of each.
  std::vector<int64_t> first_items_;
};

}  // namespace baton::engine::cpu
