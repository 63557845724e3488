// How LoadModelWeights finds what a Hugging Face directory has: tensors by
// their names, checked, and matrices in any form that such files have them in.
//
// One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/quantization_config.h"
#include "engine/safetensors.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// The first error is remembered; what is taken after it is empty.
class TensorFinder final {
 public:
  // The arguments must outlive the object.
  TensorFinder(const SafetensorsSet& set,
               const QuantizationConfig& quantization)
      : set_(set), quantization_(quantization) {}

  const absl::Status& status() const { return status_; }

  TensorView Take(const std::string& name, std::vector<int64_t> shape);

  std::optional<TensorView> TakeIf(bool wanted, const std::string& name,
                                   std::vector<int64_t> shape);

  // Rows [first, first + rows) of the matrix `module`.weight, which has
  // `all_rows`; of plain ones alone.
  WeightMatrix TakeRows(const std::string& module, int64_t all_rows,
                        int64_t columns, int64_t first, int64_t rows);

  // The matrix `module`.weight, or what a quantized file has in its place.
  WeightMatrix TakeMatrix(const std::string& module, int64_t rows,
                          int64_t columns);

  // Of the matrices of all `experts`, in `tensor` one behind another
  // (expert_rows.h), of `outputs` rows each, those of `expert` that `run` says.
  WeightMatrix TakeExpert(const std::string& tensor, int32_t experts,
                          int32_t expert, int64_t outputs, int64_t columns,
                          const OutputRun& run);

  // Of `tensor`, [experts, size], what is of `expert`.
  std::optional<TensorView> TakeExpertBias(bool wanted,
                                           const std::string& tensor,
                                           int32_t experts, int32_t expert,
                                           int64_t size);

 private:
  using Method = QuantizationConfig::Method;

  // Whether there is a matrix of that name, as quantized files have them.
  bool IsFp8(const std::string& name) const;

  bool IsGrouped(const std::string& name) const;

  // Of any element type.
  TensorView TakeAny(const std::string& name, std::vector<int64_t> shape);

  // What lies behind the first of its sizes, of one index.
  void CutExpert(TensorView& view, int32_t expert) const;

  TensorView TakeBytes(const std::string& name, std::vector<int64_t> shape);

  TensorView TakeIntegers(const std::string& name, std::vector<int64_t> shape);

  // The parts of a GPTQ or AWQ matrix (group_blocks.h).
  void TakeGrouped(const std::string& module, WeightMatrix& m);

  // An FP8 matrix and its scales (fp8_rows.h).
  void TakeFp8(const std::string& module, WeightMatrix& m);

  // Whether it has neighbours in one group, in order.
  bool CheckGroupIndex(const TensorView& index, int64_t groups,
                       int64_t group_size);

  TensorView Fail(absl::Status error);

  const SafetensorsSet& set_;
  const QuantizationConfig& quantization_;
  absl::Status status_;
};

}  // namespace baton::engine
