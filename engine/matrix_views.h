// Matrices that are a part of another one, or its turned parts, whatever that
// one is stored as.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// The rows that `run` says of `base`, `rows` of them, and of these the columns
// [first_column, first_column + columns).
// REQUIRES: there are such; `base` is itself no view.
WeightMatrix PartOf(std::shared_ptr<const WeightMatrix> base,
                    const OutputRun& run, int64_t rows, int64_t first_column,
                    int64_t columns);

// Of heads whose inputs are rows of `base`: output r of head h, of
// base.columns, has base(run.first + h * run.stride + i, r) for input i, of
// run.rows.
// REQUIRES: as PartOf.
WeightMatrix TurnedHeads(std::shared_ptr<const WeightMatrix> base,
                         const OutputRun& run, int64_t heads);

// ReadRows of these two: kPart and kTurnedHeads.
void ReadViewRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                  absl::Span<float> out);

}  // namespace baton::engine
