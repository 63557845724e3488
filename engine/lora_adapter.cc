// Field and tensor names, defaults and meanings are those of Hugging Face PEFT
// (peft/tuners/lora).
#include "engine/lora_adapter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "engine/identity_hash.h"
#include "engine/json_fields.h"
#include "engine/json_file.h"
#include "engine/safetensors.h"

namespace baton::engine {
namespace {

using nlohmann::json;

constexpr int64_t kMaxAdapterConfigBytes = int64_t{1} << 20;
// Part of the identity: raise it when the bytes that are hashed change.
constexpr int64_t kAdapterFormatVersion = 1;

constexpr LoraTarget kQkvTargets[] = {LoraTarget::kQ, LoraTarget::kK,
                                      LoraTarget::kV};
constexpr LoraTarget kOTargets[] = {LoraTarget::kO};
constexpr LoraTarget kGateUpTargets[] = {LoraTarget::kGate, LoraTarget::kUp};
constexpr LoraTarget kDownTargets[] = {LoraTarget::kDown};

// Of adapter_config.json.
struct Scaling {
  int32_t rank = 0;  // of all pairs, if none is said to have another
  bool ranks_vary = false;
  double alpha = 0;
  bool by_root = false;  // use_rslora

  double Of(int64_t rank) const {
    const auto r = static_cast<double>(rank);
    return alpha / (by_root ? std::sqrt(r) : r);
  }
};

// One that says something: not absent, null, false or empty.
bool Says(const JsonFields& fields, absl::string_view name) {
  const json* const value = fields.Find(name);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_structured()) return !value->empty();
  return true;
}

// Ways to begin that change the model's own matrices: what is added to it as it
// was means nothing.
bool ChangesModel(const JsonFields& fields) {
  const json* const value = fields.Find("init_lora_weights");
  if (value == nullptr || !value->is_string()) return false;
  const std::string way = value->get<std::string>();
  return absl::StartsWith(way, "pissa") || absl::StartsWith(way, "corda") ||
         way == "olora" || way == "loftq";
}

absl::StatusOr<Scaling> ReadScaling(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const json root,
                         ReadJsonObject(path, kMaxAdapterConfigBytes));
  JsonFields fields(path, root);
  const auto unknown = [&](absl::string_view name, absl::string_view known) {
    fields.Fail(absl::UnimplementedError(absl::StrCat(
        fields.Where(name), " is ", JsonExcerpt(*fields.Find(name)),
        "; Baton knows ", known)));
  };
  if (fields.String("peft_type", "LORA") != "LORA") {
    unknown("peft_type", "\"LORA\"");
  }
  for (const char* name :
       {"use_dora", "fan_in_fan_out", "lora_bias", "modules_to_save",
        "alpha_pattern", "layer_replication", "trainable_token_indices",
        "target_parameters", "megatron_config"}) {
    if (Says(fields, name)) unknown(name, "adapters without it");
  }
  if (fields.String("bias", "none") != "none") unknown("bias", "\"none\"");
  if (ChangesModel(fields)) {
    unknown("init_lora_weights",
            "adapters that add to the model as it was (PEFT's save_pretrained "
            "makes one of it, with path_initial_model_for_weight_conversion)");
  }
  Scaling scaling;
  scaling.rank = fields.RequiredInt("r", 1, kMaxLoraRank);
  scaling.ranks_vary = Says(fields, "rank_pattern");
  scaling.alpha = fields.Number("lora_alpha", 8.0, -1e6, 1e6);
  scaling.by_root = fields.Bool("use_rslora", false);
  BATON_RETURN_IF_ERROR(fields.status());
  return scaling;
}

// Which rows of a module's matrix are a target's.
struct TargetRows {
  LoraTarget target;
  int64_t first = 0;
  int64_t rows = 0;
};

// Those of the module (as of "self_attn.q_proj"); none of what adapters cannot
// add to.
std::vector<TargetRows> TargetsOfModule(const ModelConfig& config,
                                        int32_t layer,
                                        absl::string_view module) {
  struct Module {
    const char* name;
    std::vector<LoraTarget> targets;
  };
  static const auto* const apart =
      new std::vector<Module>{{"self_attn.q_proj", {LoraTarget::kQ}},
                              {"self_attn.k_proj", {LoraTarget::kK}},
                              {"self_attn.v_proj", {LoraTarget::kV}},
                              {"self_attn.o_proj", {LoraTarget::kO}},
                              {"mlp.gate_proj", {LoraTarget::kGate}},
                              {"mlp.up_proj", {LoraTarget::kUp}},
                              {"mlp.down_proj", {LoraTarget::kDown}}};
  static const auto* const fused = new std::vector<Module>{
      {"self_attn.qkv_proj", {LoraTarget::kQ, LoraTarget::kK, LoraTarget::kV}},
      {"self_attn.o_proj", {LoraTarget::kO}},
      {"mlp.gate_up_proj", {LoraTarget::kGate, LoraTarget::kUp}},
      {"mlp.down_proj", {LoraTarget::kDown}}};
  std::vector<TargetRows> rows;
  for (const Module& known :
       config.architecture == Architecture::kPhi3 ? *fused : *apart) {
    if (module != known.name) continue;
    int64_t first = 0;
    for (const LoraTarget target : known.targets) {
      const std::optional<LoraShape> shape = LoraShapeOf(config, layer, target);
      if (!shape.has_value()) return {};
      rows.push_back({target, first, shape->outputs});
      first += shape->outputs;
    }
  }
  return rows;
}

// "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight" in parts.
struct TensorName {
  int32_t layer = 0;
  absl::string_view module;  // "self_attn.q_proj"
  bool is_b = false;
};

std::optional<TensorName> ParseName(absl::string_view name) {
  TensorName parsed;
  absl::ConsumePrefix(&name, "base_model.model.");
  // The other two: of models that read images as well (weights.cc).
  if (!absl::ConsumePrefix(&name, "model.layers.") &&
      !absl::ConsumePrefix(&name, "model.language_model.layers.") &&
      !absl::ConsumePrefix(&name, "language_model.model.layers.")) {
    return std::nullopt;
  }
  const size_t dot = name.find('.');
  if (dot == absl::string_view::npos || dot > 9 ||
      !absl::SimpleAtoi(name.substr(0, dot), &parsed.layer)) {
    return std::nullopt;
  }
  name.remove_prefix(dot + 1);
  if (absl::ConsumeSuffix(&name, ".lora_B.weight")) {
    parsed.is_b = true;
  } else if (!absl::ConsumeSuffix(&name, ".lora_A.weight")) {
    return std::nullopt;
  }
  parsed.module = name;
  return parsed;
}

WeightMatrix MatrixOf(const TensorView& tensor) {
  WeightMatrix matrix;
  matrix.name = tensor.name;
  matrix.rows = tensor.shape[0];
  matrix.columns = tensor.shape[1];
  matrix.values = tensor;
  matrix.mapped = true;
  return matrix;
}

WeightMatrix RowsOf(const TensorView& tensor, const TargetRows& part) {
  WeightMatrix matrix = MatrixOf(tensor);
  const auto row_bytes =
      static_cast<int64_t>(tensor.bytes.size()) / matrix.rows;
  matrix.rows = part.rows;
  matrix.values.shape[0] = part.rows;
  matrix.values.bytes =
      tensor.bytes.subspan(part.first * row_bytes, part.rows * row_bytes);
  return matrix;
}

// Reads the tensors of one file.
class PairReader {
 public:
  PairReader(const SafetensorsFile& file, const Scaling& scaling,
             const ModelConfig& config)
      : file_(file), scaling_(scaling), config_(config) {}

  absl::Status Read(LoraAdapter* adapter) const {
    adapter->layers.resize(config_.num_layers);
    for (const TensorView& tensor : file_.tensors()) {
      const std::optional<TensorName> name = ParseName(tensor.name);
      const std::vector<TargetRows> targets =
          name.has_value() && name->layer >= 0 &&
                  name->layer < config_.num_layers
              ? TargetsOfModule(config_, name->layer, name->module)
              : std::vector<TargetRows>();
      if (targets.empty()) {
        return absl::UnimplementedError(absl::StrCat(
            file_.path(), ": tensor \"", tensor.name,
            "\" adds to nothing that Baton's adapters of this model add to"));
      }
      // Both of a pair are read with the first.
      if (name->is_b) {
        BATON_RETURN_IF_ERROR(PartnerOf(tensor).status());
        continue;
      }
      BATON_ASSIGN_OR_RETURN(const TensorView* const b, PartnerOf(tensor));
      BATON_RETURN_IF_ERROR(CheckPair(tensor, *b, *name, targets));
      const int64_t rank = tensor.shape[0];
      adapter->rank = std::max(adapter->rank, static_cast<int32_t>(rank));
      for (const TargetRows& target : targets) {
        adapter->layers[name->layer].pairs[static_cast<size_t>(target.target)] =
            LoraPair{MatrixOf(tensor), RowsOf(*b, target), scaling_.Of(rank)};
      }
    }
    if (adapter->rank == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": has no tensor"));
    }
    return absl::OkStatus();
  }

 private:
  // Of lora_A its lora_B, and the other way round.
  absl::StatusOr<const TensorView*> PartnerOf(const TensorView& tensor) const {
    std::string name = tensor.name;
    char& side = name[name.size() - std::string(".weight").size() - 1];
    side = side == 'A' ? 'B' : 'A';
    const TensorView* const partner = file_.Find(name);
    if (partner != nullptr) return partner;
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor \"",
                                                   name, "\" is missing, \"",
                                                   tensor.name, "\" is there"));
  }

  absl::Status CheckShape(const TensorView& tensor, int64_t rows,
                          int64_t columns) const {
    if (!IsWeightDType(tensor.dtype)) {
      return absl::UnimplementedError(absl::StrCat(
          file_.path(), ": tensor \"", tensor.name, "\" is ",
          DTypeName(tensor.dtype), "; Baton reads F32, F16 and BF16"));
    }
    const std::vector<int64_t> wanted = {rows, columns};
    if (tensor.shape == wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": tensor \"", tensor.name, "\" has shape ",
                     ShapeString(tensor.shape), ", this model asks for ",
                     ShapeString(wanted)));
  }

  absl::Status CheckPair(const TensorView& a, const TensorView& b,
                         const TensorName& name,
                         const std::vector<TargetRows>& targets) const {
    int64_t rank = scaling_.rank;
    if (scaling_.ranks_vary && !a.shape.empty() && a.shape[0] >= 1 &&
        a.shape[0] <= kMaxLoraRank) {
      rank = a.shape[0];
    }
    const int64_t outputs = targets.back().first + targets.back().rows;
    BATON_RETURN_IF_ERROR(CheckShape(
        a, rank,
        LoraShapeOf(config_, name.layer, targets.front().target)->inputs));
    return CheckShape(b, outputs, rank);
  }

  const SafetensorsFile& file_;
  const Scaling& scaling_;
  const ModelConfig& config_;
};

std::string IdentityOf(const SafetensorsFile& file, const Scaling& scaling) {
  IdentityHash hash;
  hash.AddInt(kAdapterFormatVersion);
  hash.AddDouble(scaling.alpha);
  hash.AddInt(scaling.by_root);
  for (const TensorView& tensor : file.tensors()) {
    hash.AddString(tensor.name);
    hash.AddString(DTypeName(tensor.dtype));
    for (const int64_t dimension : tensor.shape) hash.AddInt(dimension);
    hash.AddBytes(tensor.bytes);
  }
  return hash.Hex();
}

}  // namespace

absl::Span<const LoraTarget> TargetsOf(LoraInput input) {
  switch (input) {
    case LoraInput::kQkv:
      return kQkvTargets;
    case LoraInput::kO:
      return kOTargets;
    case LoraInput::kGateUp:
      return kGateUpTargets;
    case LoraInput::kDown:
      return kDownTargets;
  }
  return {};
}

std::optional<LoraShape> LoraShapeOf(const ModelConfig& config, int32_t layer,
                                     LoraTarget target) {
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t inner = config.intermediate_size;
  switch (target) {
    case LoraTarget::kQ:
      return LoraShape{q_size, hidden};
    case LoraTarget::kK:
    case LoraTarget::kV:
      return LoraShape{kv_size, hidden};
    case LoraTarget::kO:
      return LoraShape{hidden, q_size};
    case LoraTarget::kGate:
    case LoraTarget::kUp:
      if (config.LayerHasExperts(layer)) return std::nullopt;
      return LoraShape{inner, hidden};
    case LoraTarget::kDown:
      if (config.LayerHasExperts(layer)) return std::nullopt;
      return LoraShape{hidden, inner};
  }
  return std::nullopt;
}

absl::StatusOr<LoraAdapter> LoadLoraAdapter(const std::string& dir,
                                            const ModelConfig& config) {
  if (config.IsLatent()) {
    return absl::UnimplementedError(absl::StrCat(
        dir, ": Baton knows no adapters of ",
        ArchitectureName(config.architecture), ", which has latent attention"));
  }
  BATON_ASSIGN_OR_RETURN(const Scaling scaling,
                         ReadScaling(dir + "/adapter_config.json"));
  BATON_ASSIGN_OR_RETURN(
      const std::shared_ptr<const SafetensorsFile> file,
      SafetensorsFile::Open(dir + "/adapter_model.safetensors"));
  LoraAdapter adapter;
  BATON_RETURN_IF_ERROR(PairReader(*file, scaling, config).Read(&adapter));
  adapter.identity = IdentityOf(*file, scaling);
  adapter.storage = file;
  return adapter;
}

absl::StatusOr<std::vector<LoraAdapter>> LoadLoraAdapters(
    absl::Span<const AdapterSource> sources, const ModelConfig& config) {
  std::vector<LoraAdapter> adapters;
  for (const AdapterSource& source : sources) {
    absl::StatusOr<LoraAdapter> adapter = LoadLoraAdapter(source.dir, config);
    if (!adapter.ok()) {
      return absl::Status(adapter.status().code(),
                          absl::StrCat("adapter ", source.name, ": ",
                                       adapter.status().message()));
    }
    adapter->name = source.name;
    adapters.push_back(*std::move(adapter));
  }
  return adapters;
}

std::vector<AdapterInfo> AdapterInfos(absl::Span<const LoraAdapter> adapters) {
  std::vector<AdapterInfo> infos;
  for (const LoraAdapter& adapter : adapters) {
    infos.push_back({adapter.name, adapter.identity, adapter.rank});
  }
  return infos;
}

}  // namespace baton::engine
