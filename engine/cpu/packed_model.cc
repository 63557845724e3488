#include "engine/cpu/packed_model.h"

#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/json_fields.h"
#include "engine/json_file.h"
#include "engine/safetensors.h"

namespace baton::engine::cpu {
namespace {

using nlohmann::ordered_json;

constexpr int kFormat = 2;
constexpr absl::string_view kAgain =
    "quantize the model again, with this version of Baton";
constexpr int64_t kMaxManifestBytes = 64 << 10;
constexpr size_t kMaxIdentity = 64;
constexpr uintptr_t kDataAlignment = 64;

struct LayoutField {
  const char* name;
  int32_t value;
};
constexpr LayoutField kLayout[] = {{"panel_columns", kPanelColumns},
                                   {"group_inputs", kGroupInputs},
                                   {"gate_panels", kGatePanels}};

// A tensor of the file and, when it is written, its content.
struct PlannedTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  absl::Span<const std::byte> bytes;
};

// A vector of the model in float32, and where it belongs.
struct VectorPlace {
  std::string name;
  int64_t size = 0;
  std::vector<float>* values = nullptr;
};

int64_t Padded(int64_t outputs) {
  return (outputs + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

// All vectors that the model has, in the order of the file.
// REQUIRES: as many layers as the config says, whose matrices are there.
std::vector<VectorPlace> VectorPlaces(const ModelConfig& config,
                                      CpuWeights& weights) {
  std::vector<VectorPlace> places;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    CpuLayerWeights& layer = weights.layers[i];
    const std::string prefix = absl::StrCat("layers.", i, ".");
    const auto add = [&](bool there, absl::string_view name, int64_t size,
                         std::vector<float>* values) {
      if (there) places.push_back({absl::StrCat(prefix, name), size, values});
    };
    const int64_t hidden = config.hidden_size;
    add(true, "input_norm", hidden, &layer.input_norm);
    add(true, "post_attention_norm", hidden, &layer.post_attention_norm);
    add(config.qkv_bias, "qkv_bias", layer.qkv.outputs(), &layer.qkv_bias);
    add(config.o_bias, "o_bias", Padded(hidden), &layer.o_bias);
    add(config.mlp_bias, "gate_up_bias", layer.gate_up.outputs(),
        &layer.gate_up_bias);
    add(config.mlp_bias, "down_bias", Padded(hidden), &layer.down_bias);
    add(config.qk_norm, "q_norm", config.head_dim, &layer.q_norm);
    add(config.qk_norm, "k_norm", config.head_dim, &layer.k_norm);
    add(config.post_norms, "attention_out_norm", hidden,
        &layer.attention_out_norm);
    add(config.post_norms, "feed_forward_out_norm", hidden,
        &layer.feed_forward_out_norm);
    add(config.experts.choice_bias && config.LayerHasExperts(i), "choice_bias",
        config.experts.count, &layer.choice_bias);
    add(config.IsLatent(), "latent_norm", config.latent.rank,
        &layer.latent.norm);
    add(config.latent.query_rank > 0, "query_norm", config.latent.query_rank,
        &layer.latent.query_norm);
    add(config.attention_sinks, "sinks", config.num_heads, &layer.sinks);
    if (!config.LayerHasExperts(i)) continue;
    add(config.experts.router_bias, "router_bias", config.experts.count,
        &layer.router_bias);
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      CpuExpertWeights& expert = layer.experts[e];
      const std::string name = absl::StrCat("experts.", e, ".");
      add(config.experts.bias, name + "gate_up_bias", expert.gate_up.outputs(),
          &expert.gate_up_bias);
      add(config.experts.bias, name + "down_bias", Padded(hidden),
          &expert.down_bias);
    }
  }
  places.push_back({"final_norm", config.hidden_size, &weights.final_norm});
  return places;
}

PlannedTensor MatrixTensor(const MatrixPlace& place) {
  const PackedShape& shape = place.shape;
  const int64_t units = shape.panels / shape.unit;
  const int64_t unit_bytes = PackedMatrix::kStepBytes * shape.unit;
  PlannedTensor tensor;
  tensor.name = place.name;
  tensor.shape = {units, shape.size().data / (units * unit_bytes), unit_bytes};
  tensor.bytes = place.matrix->data();
  return tensor;
}

PlannedTensor ScalesTensor(const MatrixPlace& place) {
  const PackedShape& shape = place.shape;
  const int64_t bytes = shape.size().scales;
  PlannedTensor tensor;
  tensor.name = place.name + ".scales";
  tensor.shape = {bytes};
  tensor.bytes = place.matrix->scales();
  return tensor;
}

// The whole file. `weights` is only read; MatrixPlaces wants it writable.
std::vector<PlannedTensor> PlanTensors(const ModelConfig& config,
                                       CpuWeights& weights) {
  const std::vector<MatrixPlace> places = MatrixPlaces(config, weights);
  std::vector<PlannedTensor> tensors;
  for (const MatrixPlace& place : places)
    tensors.push_back(MatrixTensor(place));
  for (const MatrixPlace& place : places) {
    if (place.shape.size().scales > 0) tensors.push_back(ScalesTensor(place));
  }
  for (const VectorPlace& place : VectorPlaces(config, weights)) {
    CHECK_EQ(static_cast<int64_t>(place.values->size()), place.size)
        << place.name;
    const auto* const bytes =
        reinterpret_cast<const std::byte*>(place.values->data());
    tensors.push_back({place.name,
                       DType::kF32,
                       {place.size},
                       {bytes, place.values->size() * sizeof(float)}});
  }
  if (!config.tie_word_embeddings) {
    const absl::Span<const uint16_t> values = weights.embedding;
    tensors.push_back({"embedding",
                       DType::kBf16,
                       {config.vocab_size, config.hidden_size},
                       {reinterpret_cast<const std::byte*>(values.data()),
                        values.size() * sizeof(uint16_t)}});
  }
  return tensors;
}

// The length of the header and the header, padded.
std::string FileHeader(absl::Span<const PlannedTensor> tensors) {
  ordered_json header = {{"__metadata__", {{"format", "baton"}}}};
  int64_t offset = 0;
  for (const PlannedTensor& tensor : tensors) {
    const int64_t end = offset + static_cast<int64_t>(tensor.bytes.size());
    header[tensor.name] = {{"dtype", DTypeName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  constexpr size_t kLengthBytes = 8;
  const size_t begin = (kLengthBytes + text.size() + kDataAlignment - 1) /
                       kDataAlignment * kDataAlignment;
  text.resize(begin - kLengthBytes, ' ');
  std::string length;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length.push_back(static_cast<char>(text.size() >> (8 * i)));
  }
  return length + text;
}

// Takes tensors out of the file, checked.
class TensorReader final {
 public:
  explicit TensorReader(const SafetensorsFile& file) : file_(file) {}

  absl::StatusOr<absl::Span<const std::byte>> Take(
      const std::string& name, DType dtype, absl::Span<const int64_t> shape,
      uintptr_t alignment) const {
    const TensorView* const view = file_.Find(name);
    if (view == nullptr) {
      return absl::NotFoundError(absl::StrCat(file_.path(), ": tensor \"", name,
                                              "\" is missing: ", kAgain));
    }
    if (view->dtype != dtype || view->shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor \"", name, "\" is ", DTypeName(view->dtype),
          " ", ShapeString(view->shape), ", it must be ", DTypeName(dtype), " ",
          ShapeString(shape), ": ", kAgain));
    }
    if (reinterpret_cast<uintptr_t>(view->bytes.data()) % alignment != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor \"", name,
          "\" does not begin at a multiple of ", alignment, " bytes"));
    }
    return view->bytes;
  }

  absl::Status TakeMatrix(const MatrixPlace& place) const {
    const PlannedTensor data = MatrixTensor(place);
    BATON_ASSIGN_OR_RETURN(
        const absl::Span<const std::byte> bytes,
        Take(data.name, data.dtype, data.shape, kDataAlignment));
    absl::Span<const std::byte> scale_bytes;
    if (place.shape.size().scales > 0) {
      const PlannedTensor scales = ScalesTensor(place);
      BATON_ASSIGN_OR_RETURN(scale_bytes, Take(scales.name, scales.dtype,
                                               scales.shape, alignof(float)));
    }
    *place.matrix = PackedMatrix(place.shape, bytes, scale_bytes);
    return absl::OkStatus();
  }

  absl::Status TakeVector(const VectorPlace& place) const {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes,
                           Take(place.name, DType::kF32, {place.size}, 1));
    place.values->resize(place.size);
    std::memcpy(place.values->data(), bytes.data(), bytes.size());
    return absl::OkStatus();
  }

 private:
  const SafetensorsFile& file_;
};

// Only characters that identities are made of.
bool IsIdentity(const std::string& text) {
  if (text.empty() || text.size() > kMaxIdentity) return false;
  for (const char c : text) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') {
      return false;
    }
  }
  return true;
}

void CheckLayout(JsonFields& fields) {
  const nlohmann::json* const layout = fields.Find("layout");
  if (layout == nullptr || !layout->is_object()) {
    return fields.FailField(
        "layout", layout == nullptr ? nlohmann::json() : *layout, "an object");
  }
  JsonFields inner(fields.file(), *layout, "layout.");
  for (const LayoutField& field : kLayout) {
    inner.RequiredInt(field.name, field.value, field.value);
  }
  fields.Fail(inner.status());
}

}  // namespace

bool IsPackedModel(const std::string& model) {
  std::error_code ignored;
  return std::filesystem::exists(absl::StrCat(model, "/", kPackedManifestFile),
                                 ignored);
}

std::string PackedManifestText(const PackedManifest& manifest) {
  ordered_json layout = ordered_json::object();
  for (const LayoutField& field : kLayout) layout[field.name] = field.value;
  const ordered_json json = {
      {"format", kFormat},
      {"weights", std::string(WeightDtypeName(manifest.dtype))},
      {"layout", layout},
      {"identity", manifest.identity},
      {"config", manifest.config},
      {"source", manifest.source}};
  // A name of a file need not be UTF-8.
  return absl::StrCat(
      json.dump(1, ' ', false, ordered_json::error_handler_t::replace), "\n");
}

absl::StatusOr<PackedManifest> ReadPackedManifest(const std::string& dir) {
  const std::string file = absl::StrCat(dir, "/", kPackedManifestFile);
  BATON_ASSIGN_OR_RETURN(const nlohmann::json root,
                         ReadJsonObject(file, kMaxManifestBytes));
  JsonFields fields(file, root);
  // First of all: another format has other fields.
  const nlohmann::json* const format = fields.Find("format");
  if (format != nullptr && *format != nlohmann::json(kFormat)) {
    fields.FailField("format", *format, absl::StrCat(kFormat, ": ", kAgain));
  }
  fields.RequiredInt("format", kFormat, kFormat);
  CheckLayout(fields);
  PackedManifest manifest;
  const std::string weights = fields.String("weights", "");
  const std::optional<WeightDtype> dtype = ParseWeightDtype(weights);
  if (fields.status().ok() && !dtype.has_value()) {
    fields.FailField("weights", weights, "bf16, int8, int4 or mxfp4");
  }
  manifest.dtype = dtype.value_or(WeightDtype::kBf16);
  for (const auto& [name, value] : {std::pair("identity", &manifest.identity),
                                    std::pair("config", &manifest.config)}) {
    *value = fields.String(name, "");
    if (fields.status().ok() && !IsIdentity(*value)) {
      fields.FailField(name, *value, "what `baton quantize` wrote there");
    }
  }
  manifest.source = fields.String("source", "");
  BATON_RETURN_IF_ERROR(fields.status());
  return manifest;
}

int64_t PackedWeightsBytes(const ModelConfig& config, WeightDtype dtype) {
  CpuWeights weights;
  weights.dtype = dtype;
  int64_t bytes = 0;
  for (const MatrixPlace& place : MatrixPlaces(config, weights)) {
    bytes += place.shape.size().data + place.shape.size().scales;
  }
  if (config.tie_word_embeddings) return bytes;
  return bytes +
         int64_t{sizeof(uint16_t)} * config.vocab_size * config.hidden_size;
}

absl::Status WritePackedWeights(const ModelConfig& config,
                                const CpuWeights& weights, AppendBytes append) {
  // MatrixPlaces changes nothing where there are all layers.
  CHECK_EQ(static_cast<int32_t>(weights.layers.size()), config.num_layers);
  const std::vector<PlannedTensor> tensors =
      PlanTensors(config, const_cast<CpuWeights&>(weights));
  const std::string header = FileHeader(tensors);
  BATON_RETURN_IF_ERROR(append(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(header.data()), header.size())));
  for (const PlannedTensor& tensor : tensors) {
    BATON_RETURN_IF_ERROR(append(tensor.bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<CpuWeights> MapPackedWeights(const std::string& dir,
                                            const ModelConfig& config,
                                            WeightDtype dtype) {
  BATON_ASSIGN_OR_RETURN(
      const std::shared_ptr<const SafetensorsFile> file,
      SafetensorsFile::Open(absl::StrCat(dir, "/", kPackedWeightsFile)));
  CpuWeights weights;
  weights.dtype = dtype;
  weights.hidden_size = config.hidden_size;
  const std::vector<MatrixPlace> places = MatrixPlaces(config, weights);
  const TensorReader reader(*file);
  for (const MatrixPlace& place : places) {
    BATON_RETURN_IF_ERROR(reader.TakeMatrix(place));
  }
  for (const VectorPlace& place : VectorPlaces(config, weights)) {
    BATON_RETURN_IF_ERROR(reader.TakeVector(place));
  }
  if (!config.tie_word_embeddings) {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes,
                           reader.Take("embedding", DType::kBf16,
                                       {config.vocab_size, config.hidden_size},
                                       alignof(uint16_t)));
    weights.embedding = {reinterpret_cast<const uint16_t*>(bytes.data()),
                         bytes.size() / sizeof(uint16_t)};
  }
  file->ReadAhead();
  weights.mapping = file;
  return weights;
}

}  // namespace baton::engine::cpu
