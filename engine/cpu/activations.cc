#include "engine/cpu/activations.h"

#include <algorithm>

#include "common/log.h"

namespace baton::engine::cpu {

Activations::Activations(WeightDtype weights, int32_t columns)
    : quantized_(TakesInt8(weights)),
      columns_(columns),
      stride_((int64_t{columns} + kGroupInputs - 1) / kGroupInputs *
              kGroupInputs) {}

void Activations::Reserve(int32_t rows) {
  if (!quantized_) {
    bf16_.Reserve(rows * stride_);
    return;
  }
  int8_.Reserve(rows * stride_);
  scales_.Reserve(rows * groups());
  sums_.Reserve(rows * groups());
}

void Activations::Write(const Kernels& kernels, int32_t row,
                        int32_t first_column, const float* values, int32_t n) {
  DCHECK_EQ(first_column % kGroupInputs, 0);
  const int64_t begin = row * stride_ + first_column;
  const int64_t padded =
      (int64_t{n} + kGroupInputs - 1) / kGroupInputs * kGroupInputs;
  if (!quantized_) {
    kernels.round_row(values, n, bf16_.data() + begin);
    std::fill_n(bf16_.data() + begin + n, padded - n, uint16_t{0});
    return;
  }
  const int64_t first_group = row * groups() + first_column / kGroupInputs;
  for (int32_t i = 0; i < n; i += kGroupInputs) {
    const int64_t group = first_group + i / kGroupInputs;
    scales_.data()[group] =
        kernels.quantize(values + i, std::min(kGroupInputs, n - i),
                         int8_.data() + begin + i, sums_.data() + group);
  }
  std::fill_n(int8_.data() + begin + n, padded - n, int8_t{0});
}

void Activations::CopyRow(const Activations& from, int32_t from_row,
                          int32_t row) {
  DCHECK_EQ(from.stride_, stride_);
  DCHECK_EQ(from.quantized_, quantized_);
  if (!quantized_) {
    std::copy_n(from.bf16(from_row), stride_, bf16(row));
    return;
  }
  std::copy_n(from.int8(from_row), stride_, int8_.data() + row * stride_);
  std::copy_n(from.scales(from_row), groups(), scales_.data() + row * groups());
  std::copy_n(from.sums(from_row), groups(), sums_.data() + row * groups());
}

}  // namespace baton::engine::cpu
