// What LoRA adapters add to the products of a step: of each row what its own
// adapter says, of most rows nothing.
//
// First the rows of a matrix's input go through A (Multiply), in one more
// product; then, strip by strip, what B makes of that is added to the product
// of the matrix itself, while that is in the cache (AddTo). A row's values
// depend on that row and its adapter alone, bitwise.
//
// Called by the engine's thread, but for AddTo, which threads of the team call
// for different strips at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/cpu/activations.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/lora_weights.h"
#include "engine/cpu/matmul.h"

namespace baton::engine::cpu {

// Rows [first_row, first_row + rows) have this adapter.
struct LoraRun {
  int32_t adapter = 0;
  int32_t first_row = 0;
  int32_t rows = 0;
};

class LoraProducts final {
 public:
  // All arguments must outlive the object. Adapters may come and go between
  // SetRuns of two steps.
  LoraProducts(const Kernels& kernels, Matmul& matmul, const CpuLoras& loras);

  // The rows of the products to come: by rising first_row, none twice. Those
  // that are in no run have no adapter. REQUIRES: there are such adapters.
  void SetRuns(std::vector<LoraRun> runs);
  // Whether there are any.
  bool any() const { return !runs_.empty(); }

  // The rows of `a` through A of the layer's matrices that read them.
  // REQUIRES: `a` is in bfloat16 and has the rows of all runs.
  void Multiply(int32_t layer, LoraInput input, const Activations& a);

  // Adds what B makes of it, for the target's panels [first_panel, first_panel
  // + panels), to the values of a strip, from strip.row(i) + `column` on.
  // REQUIRES: Multiply was called for that layer and the target's input last;
  // both are multiples of the target's unit.
  void AddTo(int32_t layer, LoraTarget target, int32_t first_panel,
             int32_t panels, int32_t column, const Strip& strip) const;

 private:
  // Rows of the last input's targets: room for ranks up to that.
  void ReserveNarrow(int32_t rank, int32_t rows);

  const Kernels& kernels_;
  Matmul& matmul_;
  const CpuLoras& loras_;
  std::vector<LoraRun> runs_;
  int32_t end_row_ = 0;              // of the last run
  std::vector<int32_t> adapter_of_;  // [row], -1: none
  // Of the targets of the last input: [rows][the largest rank so far].
  std::array<std::optional<Activations>, kMaxLoraParts> narrow_;
  std::vector<int32_t> ranks_;  // of the runs, each once
  std::vector<RowGroup> groups_;
};

}  // namespace baton::engine::cpu
