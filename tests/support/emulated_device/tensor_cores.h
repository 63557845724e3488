// How tensor cores of Hopper add: the rounding of mma.sync and wgmma alike, for
// bfloat16 with float32 sums, as Xie et al. measured it on a chip ("MMA-Sim:
// Bit-Accurate Reference Model of Tensor Cores and Matrix Cores",
// arXiv:2511.10909, T-FDPA with F = 25 and L = 16; Khattak and
// Mikaitis,
// arXiv:2512.07004, found the same). For the device that the CPU plays.
//
// Pure functions, any thread, but for SetGroupFractionBits.
#pragma once

#include <cstdint>

namespace baton::engine::cuda::emulated {

// Values of a product's operand: bfloat16, as floats.
inline constexpr int kStepInputs = 16;
inline constexpr int kFractionBits = 25;

// sum + a[0] b[0] + ... + a[15] b[15] in one operation: the 17 terms are
// aligned to the greatest exponent among them (of a product, the sum of its
// operands'), cut to 25 bits behind the point, added exactly, and what comes
// out is cut to a float32, towards zero. Where something is not finite: the sum
// in double.
float TensorCoreStep(float sum, const float (&a)[kStepInputs],
                     const float (&b)[kStepInputs],
                     int fraction_bits = kFractionBits);

// The same for each of rows x columns sums (one row after another), of a row of
// `left` and one of `right`. On CPUs with AVX2 three times as fast for up to 16
// rows and a multiple of 8 columns.
void TensorCoreSteps(float* sums, const float (*left)[kStepInputs], int rows,
                     const float (*right)[kStepInputs], int columns,
                     int fraction_bits = kFractionBits);

// What a warp's mma.m16n8k16 makes of what its 32 lanes have: words 0 to 3 of
// a, 4 and 5 of b, as PTX says, and 6 to 9 of the sums, which it adds to.
inline constexpr int kMmaWords = 10;
void JoinMma(uint32_t (*lanes)[kMmaWords]);

// How many bits products of groups of warps have behind the point, from now on:
// for tests of what becomes of it where they are not those of others.
void SetGroupFractionBits(int bits);
int GroupFractionBits();

}  // namespace baton::engine::cuda::emulated
