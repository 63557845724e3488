#include "engine/tensor_finder.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/mxfp4.h"

namespace baton::engine {

TensorView TensorFinder::Take(const std::string& name,
                              std::vector<int64_t> shape) {
  const TensorView view = TakeAny(name, std::move(shape));
  if (!status_.ok() || IsWeightDType(view.dtype)) return view;
  return Fail(absl::UnimplementedError(absl::StrCat(
      view.file, ": tensor \"", name, "\" is ", DTypeName(view.dtype),
      "; Baton reads weights in F32, F16 and BF16")));
}

std::optional<TensorView> TensorFinder::TakeIf(bool wanted,
                                               const std::string& name,
                                               std::vector<int64_t> shape) {
  if (!wanted) return std::nullopt;
  return Take(name, std::move(shape));
}

WeightMatrix TensorFinder::TakeRows(const std::string& module, int64_t all_rows,
                                    int64_t columns, int64_t first,
                                    int64_t rows) {
  if (quantization_.method != Method::kNone) {
    Fail(absl::UnimplementedError(absl::StrCat(
        set_.source(), ": \"", module,
        "\" is several matrices in one; Baton reads such files without "
        "quantization_config")));
  }
  WeightMatrix matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.mapped = true;
  matrix.values = Take(module + ".weight", {all_rows, columns});
  matrix.name = matrix.values.name;
  if (!status_.ok()) return matrix;
  const int64_t row_bytes =
      static_cast<int64_t>(matrix.values.bytes.size()) / all_rows;
  matrix.values.shape = {rows, columns};
  matrix.values.bytes =
      matrix.values.bytes.subspan(first * row_bytes, rows * row_bytes);
  return matrix;
}

WeightMatrix TensorFinder::TakeMatrix(const std::string& module, int64_t rows,
                                      int64_t columns) {
  WeightMatrix matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.mapped = true;
  const std::string name = module + ".weight";
  if (IsFp8(name)) {
    TakeFp8(module, matrix);
  } else if (IsGrouped(module + ".qweight")) {
    TakeGrouped(module, matrix);
  } else {
    matrix.values = Take(name, {rows, columns});
  }
  matrix.name = matrix.values.name;
  return matrix;
}

WeightMatrix TensorFinder::TakeExpert(const std::string& tensor,
                                      int32_t experts, int32_t expert,
                                      int64_t outputs, int64_t columns,
                                      const OutputRun& run) {
  WeightMatrix matrix;
  matrix.rows = outputs / run.stride;
  matrix.columns = columns;
  matrix.mapped = true;
  matrix.run = run;
  if (quantization_.method == Method::kMxfp4) {
    if (columns % kMxfp4Group != 0) {
      Fail(absl::InvalidArgumentError(absl::StrCat(
          set_.source(), ": tensor \"", tensor, "_blocks\": ", columns,
          " inputs are no whole groups of ", kMxfp4Group)));
      return matrix;
    }
    const int64_t groups = columns / kMxfp4Group;
    matrix.encoding = WeightEncoding::kMxfp4;
    matrix.values = TakeBytes(tensor + "_blocks",
                              {experts, outputs, groups, kMxfp4Group / 2});
    matrix.scales = TakeBytes(tensor + "_scales", {experts, outputs, groups});
    CutExpert(matrix.scales, expert);
  } else {
    matrix.encoding = WeightEncoding::kByInput;
    matrix.values = Take(tensor, {experts, columns, outputs});
  }
  CutExpert(matrix.values, expert);
  matrix.name = matrix.values.name;
  return matrix;
}

std::optional<TensorView> TensorFinder::TakeExpertBias(
    bool wanted, const std::string& tensor, int32_t experts, int32_t expert,
    int64_t size) {
  std::optional<TensorView> view = TakeIf(wanted, tensor, {experts, size});
  if (view.has_value()) CutExpert(*view, expert);
  return view;
}

bool TensorFinder::IsFp8(const std::string& name) const {
  const TensorView* const tensor = set_.Find(name);
  return quantization_.method == Method::kFp8 && tensor != nullptr &&
         tensor->dtype == DType::kF8E4M3;
}

bool TensorFinder::IsGrouped(const std::string& name) const {
  return (quantization_.method == Method::kGptq ||
          quantization_.method == Method::kAwq) &&
         set_.Find(name) != nullptr;
}

TensorView TensorFinder::TakeAny(const std::string& name,
                                 std::vector<int64_t> shape) {
  if (!status_.ok()) return {};
  const TensorView* tensor = set_.Find(name);
  if (tensor == nullptr) {
    return Fail(absl::NotFoundError(
        absl::StrCat(set_.source(), ": tensor \"", name, "\" is missing")));
  }
  if (tensor->shape != shape) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(tensor->file, ": tensor \"", name, "\" has shape ",
                     ShapeString(tensor->shape), ", config.json asks for ",
                     ShapeString(shape))));
  }
  return *tensor;
}

void TensorFinder::CutExpert(TensorView& view, int32_t expert) const {
  if (!status_.ok()) return;
  const size_t bytes = view.bytes.size() / view.shape[0];
  view.bytes = view.bytes.subspan(expert * bytes, bytes);
  view.shape.erase(view.shape.begin());
}

TensorView TensorFinder::TakeBytes(const std::string& name,
                                   std::vector<int64_t> shape) {
  const TensorView view = TakeAny(name, std::move(shape));
  if (!status_.ok() || view.dtype == DType::kU8) return view;
  return Fail(absl::InvalidArgumentError(
      absl::StrCat(view.file, ": tensor \"", view.name, "\" is ",
                   DTypeName(view.dtype), ", it must be U8")));
}

TensorView TensorFinder::TakeIntegers(const std::string& name,
                                      std::vector<int64_t> shape) {
  const TensorView view = TakeAny(name, std::move(shape));
  if (!status_.ok() || view.dtype == DType::kI32) return view;
  return Fail(absl::InvalidArgumentError(
      absl::StrCat(view.file, ": tensor \"", name, "\" is ",
                   DTypeName(view.dtype), ", it must be I32")));
}

void TensorFinder::TakeGrouped(const std::string& module, WeightMatrix& m) {
  const bool awq = quantization_.method == QuantizationConfig::Method::kAwq;
  m.encoding = awq ? WeightEncoding::kAwq : WeightEncoding::kGptq;
  m.bits = quantization_.bits;
  m.zero_offset = quantization_.zero_offset;
  m.group_size = static_cast<int32_t>(
      quantization_.group_size > 0 ? quantization_.group_size : m.columns);
  const int64_t per_word = 32 / m.bits;
  const int64_t groups = (m.columns + m.group_size - 1) / m.group_size;
  if (m.rows % per_word != 0 || (!awq && m.columns % per_word != 0)) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat(set_.source(), ": tensor \"", module,
                     ".qweight\": a matrix ", ShapeString({m.rows, m.columns}),
                     " cannot be packed in words of ", per_word, " weights")));
    return;
  }
  m.values =
      TakeIntegers(module + ".qweight",
                   awq ? std::vector<int64_t>{m.columns, m.rows / per_word}
                       : std::vector<int64_t>{m.columns / per_word, m.rows});
  m.zeros = TakeIntegers(module + ".qzeros", {groups, m.rows / per_word});
  m.scales = Take(module + ".scales", {groups, m.rows});
  m.groups_in_order = true;
  if (awq || set_.Find(module + ".g_idx") == nullptr) return;
  m.group_index = TakeIntegers(module + ".g_idx", {m.columns});
  m.groups_in_order = CheckGroupIndex(m.group_index, groups, m.group_size);
}

void TensorFinder::TakeFp8(const std::string& module, WeightMatrix& m) {
  m.encoding = WeightEncoding::kFp8;
  m.values = TakeAny(module + ".weight", {m.rows, m.columns});
  // Which name it has says nothing: weights are multiplied by either.
  std::string name = module + ".weight_scale_inv";
  if (set_.Find(name) == nullptr) name = module + ".weight_scale";
  const TensorView* const scales = set_.Find(name);
  std::vector<int64_t> shape =
      scales != nullptr ? scales->shape : std::vector<int64_t>{1};
  m.block_columns = m.columns;
  if (shape.empty() || shape == std::vector<int64_t>{1}) {
    m.block_rows = m.rows;
  } else if (shape == std::vector<int64_t>{m.rows} ||
             shape == std::vector<int64_t>{m.rows, 1}) {
    m.block_rows = 1;
  } else if (quantization_.block_rows > 0) {
    m.block_rows = quantization_.block_rows;
    m.block_columns = quantization_.block_columns;
    shape = {(m.rows + m.block_rows - 1) / m.block_rows,
             (m.columns + m.block_columns - 1) / m.block_columns};
  } else {
    shape = {m.rows, 1};
  }
  m.scales = Take(name, std::move(shape));
}

bool TensorFinder::CheckGroupIndex(const TensorView& index, int64_t groups,
                                   int64_t group_size) {
  bool in_order = true;
  for (size_t at = 0; at < index.bytes.size(); at += sizeof(int32_t)) {
    int32_t group;
    std::memcpy(&group, index.bytes.data() + at, sizeof(group));
    const auto input = static_cast<int64_t>(at / sizeof(group));
    in_order = in_order && group == input / group_size;
    if (group >= 0 && group < groups) continue;
    Fail(absl::InvalidArgumentError(absl::StrCat(index.file, ": tensor \"",
                                                 index.name, "\" names group ",
                                                 group, " of ", groups)));
    return false;
  }
  return in_order;
}

TensorView TensorFinder::Fail(absl::Status error) {
  if (status_.ok()) status_ = std::move(error);
  return {};
}

}  // namespace baton::engine
