#include "engine/rope_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/stretched_context.h"
#include "engine/gemma_config.h"
#include "engine/json_file.h"
#include "engine/model_limits.h"

namespace baton::engine {
namespace {

using nlohmann::json;

constexpr double kMaxRopeFactor = 1e12;

constexpr double kMaxMagnitude = 1e6;

// One divisor per pair.
std::vector<double> ReadRopeFactors(JsonFields& rope, absl::string_view name,
                                    int32_t rotary_dim) {
  std::vector<double> factors;
  const json* list = rope.Find(name);
  const auto fail = [&] {
    rope.FailField(name, list == nullptr ? json() : *list,
                   absl::StrCat("a list of rotary_dim / 2 (", rotary_dim / 2,
                                ") numbers from 0 to ", kMaxRopeFactor));
    return std::vector<double>();
  };
  if (list == nullptr || !list->is_array() ||
      static_cast<int64_t>(list->size()) != rotary_dim / 2) {
    return fail();
  }
  for (const json& entry : *list) {
    const double value = entry.is_number() ? entry.get<double>() : 0;
    if (!(value > 0 && value <= kMaxRopeFactor)) return fail();
    factors.push_back(value);
  }
  return factors;
}

void ReadYarn(JsonFields& rope, const ModelConfig& config,
              RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kYarn;
  scaling.factor = rope.RequiredNumber("factor", 1.0, 1e6);
  scaling.original_max_position = rope.Int(
      "original_max_position_embeddings", config.max_position, 1, kMaxPosition);
  scaling.beta_fast = rope.Number("beta_fast", 32.0, 1e-6, 1e6);
  scaling.beta_slow = rope.Number("beta_slow", 1.0, 1e-6, 1e6);
  scaling.truncate = rope.Bool("truncate", true);
  const double mscale = rope.Number("mscale", 0.0, 0.0, 1e6);
  const double mscale_all_dim = rope.Number("mscale_all_dim", 0.0, 0.0, 1e6);
  const double magnitude =
      mscale > 0 && mscale_all_dim > 0
          ? YarnMagnitude(scaling.factor, mscale) /
                YarnMagnitude(scaling.factor, mscale_all_dim)
          : YarnMagnitude(scaling.factor);
  scaling.attention_factor =
      rope.Number("attention_factor", magnitude, 1e-6, kMaxMagnitude);
  if (config.IsLatent()) scaling.score_weight = mscale_all_dim;
  if (!rope.status().ok()) return;
  if (scaling.beta_fast <= scaling.beta_slow) {
    rope.FailField(
        "beta_fast", scaling.beta_fast,
        absl::StrCat("more than beta_slow (", scaling.beta_slow, ")"));
  }
  if (config.rope_theta <= 1.0) {
    rope.FailField("rope_theta", config.rope_theta, "more than 1 with YaRN");
  }
}

// Two lists of divisors, for texts within the original context and for longer
// ones. Keys stay as they were turned when they were computed, so one list has
// to do for all texts: the second where the context is longer, as in vLLM.
// Files have the original context beside the object or in it.
void ReadLongRope(JsonFields& fields, JsonFields& rope,
                  const ModelConfig& config, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kFactors;
  constexpr absl::string_view kOriginal = "original_max_position_embeddings";
  const int32_t beside =
      fields.Int(kOriginal, config.max_position, 2, kMaxPosition);
  const int32_t original = rope.Int(kOriginal, beside, 2, kMaxPosition);
  const double factor = rope.Number(
      "factor", static_cast<double>(config.max_position) / original, 1e-6, 1e9);
  scaling.attention_factor =
      rope.Number("attention_factor", LongRopeMagnitude(factor, original), 1e-6,
                  kMaxMagnitude);
  for (const char* const name : {"short_mscale", "long_mscale"}) {
    if (rope.Find(name) == nullptr) continue;
    rope.Fail(absl::UnimplementedError(
        absl::StrCat(rope.Where(name),
                     " is there; Baton knows one magnitude, "
                     "attention_factor, for all texts")));
  }
  std::vector<double> of_short =
      ReadRopeFactors(rope, "short_factor", config.RotaryDim());
  std::vector<double> of_long =
      ReadRopeFactors(rope, "long_factor", config.RotaryDim());
  scaling.factors =
      std::move(config.max_position > original ? of_long : of_short);
}

// Whether this is LongRoPE, which older files of Phi's call otherwise.
bool IsLongRope(const std::string& kind, const ModelConfig& config) {
  return kind == "longrope" || (config.architecture == Architecture::kPhi3 &&
                                (kind == "su" || kind == "yarn"));
}

// Reads the object that names a kind of RoPE: `rope_scaling`, or
// `rope_parameters` of newer files, which holds the base too; `fields` has it.
void ReadRopeObject(JsonFields& fields, JsonFields& rope, bool kind_required,
                    ModelConfig& config) {
  config.rope_theta = rope.Number("rope_theta", config.rope_theta, 1.0, 1e12);
  const char* kind_field =
      rope.Find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string kind =
      rope.String(kind_field, kind_required ? "" : "default");
  if (!rope.status().ok()) return;
  RopeScaling scaling;
  if (kind == "default") {
    scaling.kind = RopeScaling::Kind::kNone;
  } else if (kind == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    scaling.factor = rope.RequiredNumber("factor", 1.0, 1e6);
  } else if (kind == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.factor = rope.RequiredNumber("factor", 1.0, 1e6);
    scaling.low_freq_factor = rope.RequiredNumber("low_freq_factor", 1e-6, 1e6);
    scaling.high_freq_factor =
        rope.RequiredNumber("high_freq_factor", 1e-6, 1e6);
    scaling.original_max_position =
        rope.RequiredInt("original_max_position_embeddings", 1, kMaxPosition);
    if (rope.status().ok() &&
        scaling.high_freq_factor <= scaling.low_freq_factor) {
      rope.FailField("high_freq_factor", scaling.high_freq_factor,
                     absl::StrCat("more than low_freq_factor (",
                                  scaling.low_freq_factor, ")"));
    }
  } else if (IsLongRope(kind, config)) {
    ReadLongRope(fields, rope, config, scaling);
  } else if (kind == "yarn") {
    ReadYarn(rope, config, scaling);
  } else if (kind == kFactorsRopeType) {
    scaling.kind = RopeScaling::Kind::kFactors;
    scaling.factors = ReadRopeFactors(rope, "factors", config.RotaryDim());
    scaling.attention_factor =
        rope.Number("attention_factor", 1.0, 1e-6, kMaxMagnitude);
  } else if (kind.empty()) {
    rope.Fail(absl::InvalidArgumentError(
        absl::StrCat(rope.Where("rope_type"), " is missing")));
  } else {
    rope.Fail(absl::UnimplementedError(
        absl::StrCat(rope.Where(kind_field), " is ", JsonExcerpt(json(kind)),
                     "; Baton knows \"default\", \"linear\", \"llama3\", "
                     "\"yarn\" and \"longrope\"")));
  }
  config.rope_scaling = scaling;
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    config.max_position = StretchedContext(
        config.max_position, scaling.original_max_position, scaling.factor);
  }
}

constexpr absl::string_view kPartialRotary = "partial_rotary_factor";

// Which share of a head turns. Others than GLM's and Phi's turn whole heads.
void ReadPartialRotary(JsonFields& fields, ModelConfig& config) {
  const bool phi = config.architecture == Architecture::kPhi3;
  // Of latent attention, what turns is a part of its own.
  if (config.IsLatent()) return;
  if (!phi && config.architecture != Architecture::kGlm4Moe) {
    const double partial = fields.Number(kPartialRotary, 1.0, 0.0, 1.0);
    if (partial != 1.0) {
      fields.Fail(absl::UnimplementedError(absl::StrCat(
          fields.Where(kPartialRotary), " is ", partial, "; Baton knows 1")));
    }
    return;
  }
  const double partial =
      fields.Number(kPartialRotary, phi ? 1.0 : 0.5, 0.0, 1.0);
  // As transformers rounds it.
  const auto dim = static_cast<int32_t>(config.head_dim * partial);
  if (fields.status().ok() && (dim < 2 || dim % 2 != 0)) {
    fields.FailField(
        kPartialRotary, partial,
        absl::StrCat("a share of head_dim (", config.head_dim,
                     ") that is an even number of elements, at least 2"));
  }
  config.rotary_dim = dim == config.head_dim ? 0 : dim;
}

// Which layers of SmolLM3 turn: of the list's entries 1 means that one does.
void ReadLayerTurns(JsonFields& fields, ModelConfig& config) {
  if (config.architecture != Architecture::kSmolLm3) return;
  constexpr absl::string_view kField = "no_rope_layers";
  const int32_t interval =
      fields.Int("no_rope_layer_interval", kNoRopeLayerInterval, 1, kMaxLayers);
  const json* const list = fields.Find(kField);
  if (list == nullptr) {
    config.layer_turns = LayersThatTurn(config.num_layers, interval);
    return;
  }
  if (!list->is_array() ||
      list->size() != static_cast<size_t>(config.num_layers)) {
    return fields.FailField(kField, *list,
                            absl::StrCat("a list of num_hidden_layers (",
                                         config.num_layers, ") numbers"));
  }
  std::vector<bool> turns(config.num_layers);
  for (int32_t i = 0; i < config.num_layers; ++i) {
    int64_t value = 0;
    if (!JsonInt((*list)[i], 0, 1, &value)) {
      return fields.FailField(kField, (*list)[i], "a list of zeros and ones");
    }
    turns[i] = value == 1;
  }
  // Of none that stays, nothing needs to be said.
  if (std::find(turns.begin(), turns.end(), false) != turns.end()) {
    config.layer_turns = std::move(turns);
  }
}

// What newer files of Gemma's say of each kind of layer.
void ReadRopeOfKinds(const std::string& file, JsonFields& fields,
                     absl::string_view name, const json& object,
                     ModelConfig& config) {
  for (const auto& [kind, value] : object.items()) {
    const bool full = kind == "full_attention";
    if ((!full && kind != "sliding_attention") || !value.is_object()) {
      return fields.FailField(
          absl::StrCat(name, ".", kind), value,
          "an object of full_attention or of sliding_attention");
    }
    JsonFields rope(file, value, absl::StrCat(name, ".", kind, "."));
    if (full) {
      ReadRopeObject(fields, rope, /*kind_required=*/false, config);
    } else {
      config.sliding_rope_theta =
          rope.Number("rope_theta", *config.sliding_rope_theta, 1.0, 1e12);
      const std::string type = rope.String("rope_type", "default");
      if (rope.status().ok() && type != "default") {
        rope.Fail(absl::UnimplementedError(absl::StrCat(
            rope.Where("rope_type"), " is ", JsonExcerpt(json(type)),
            "; Baton knows \"default\"")));
      }
    }
    fields.Fail(rope.status());
  }
}

double DefaultTheta(const ModelConfig& config) {
  switch (config.architecture) {
    case Architecture::kMixtral:
      return 1e6;
    case Architecture::kSmolLm3:
      return 2e6;
    case Architecture::kGptOss:
      return 1.5e5;
    case Architecture::kGemma3:
      return 1e6;
    default:
      return 1e4;
  }
}

}  // namespace

void ReadRope(const std::string& file, JsonFields& fields,
              ModelConfig& config) {
  config.rope_theta =
      fields.Number("rope_theta", DefaultTheta(config), 1.0, 1e12);
  const bool gemma = config.architecture == Architecture::kGemma3;
  if (gemma) {
    config.sliding_rope_theta =
        fields.Number("rope_local_base_freq", kGemmaSlidingTheta, 1.0, 1e12);
  }
  ReadPartialRotary(fields, config);
  ReadLayerTurns(fields, config);
  // Newer files write the first; what an older one says in the second goes
  // before, as in transformers.
  constexpr absl::string_view kParameters = "rope_parameters";
  constexpr absl::string_view kScaling = "rope_scaling";
  const int32_t positions = config.max_position;
  for (absl::string_view name : {kParameters, kScaling}) {
    const json* object = fields.Find(name);
    if (object == nullptr) continue;
    config.max_position = positions;  // stretched once, where both say so
    if (!object->is_object()) {
      return fields.FailField(name, *object, "an object or null");
    }
    if (std::any_of(object->begin(), object->end(),
                    [](const json& value) { return value.is_object(); })) {
      if (gemma) {
        ReadRopeOfKinds(file, fields, name, *object, config);
        continue;
      }
      return fields.Fail(absl::UnimplementedError(absl::StrCat(
          fields.Where(name),
          " differs between layers; Baton knows one RoPE for all of them")));
    }
    JsonFields rope(file, *object, absl::StrCat(name, "."));
    if (rope.Find(kPartialRotary) != nullptr) ReadPartialRotary(rope, config);
    ReadRopeObject(fields, rope, /*kind_required=*/name == kScaling, config);
    fields.Fail(rope.status());
  }
}

std::vector<bool> LayersThatTurn(int32_t num_layers, int32_t interval) {
  std::vector<bool> turns;
  if (num_layers < interval) return turns;
  for (int32_t i = 0; i < num_layers; ++i) {
    turns.push_back((i + 1) % interval != 0);
  }
  return turns;
}

double YarnMagnitude(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

double LongRopeMagnitude(double factor, double original) {
  return factor <= 1.0 ? 1.0
                       : std::sqrt(1.0 + std::log(factor) / std::log(original));
}

}  // namespace baton::engine
