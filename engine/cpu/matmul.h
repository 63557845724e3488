// The matrix product of a step's activations with a weight matrix, spread over
// the team and blocked for the caches.
#pragma once

#include <cstdint>

#include "engine/cpu/kernels.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/cpu/thread_team.h"

namespace baton::engine::cpu {

// c[rows][b.outputs()] = a[rows][b.inputs()] * b^T. Strides are in elements. A
// row of `a` has 2 * b.input_pairs() elements, the last one zero when inputs is
// odd.
//
// Bitwise, a row of `c` depends on that row of `a` and on `b` alone: each
// element is one sum over k in rising order, whatever the blocking.
void Matmul(const Kernels& kernels, ThreadTeam& team, const uint16_t* a,
            int64_t a_stride, int32_t rows, const PackedMatrix& b, float* c,
            int64_t c_stride);

}  // namespace baton::engine::cpu
