#include "engine/gemma_config.h"

#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/float_convert.h"
#include "engine/json_file.h"
#include "engine/model_limits.h"

namespace baton::engine {

using nlohmann::json;

std::vector<bool> GemmaLayersThatSlide(int32_t num_layers, int32_t pattern) {
  std::vector<bool> slides(num_layers);
  for (int32_t i = 0; i < num_layers; ++i) slides[i] = (i + 1) % pattern != 0;
  return slides;
}

void SetGemma(ModelConfig& config) {
  config.post_norms = true;
  config.qk_norm = true;
  config.activation = Activation::kGeluTanh;
  // As these models were trained, and as transformers rounds it for weights in
  // bfloat16.
  config.embedding_scale = Bf16ToFloat(
      FloatToBf16(std::sqrt(static_cast<float>(config.hidden_size))));
}

void ReadGemma(JsonFields& fields, ModelConfig& config) {
  SetGemma(config);
  config.norm_offset = 1.0;
  config.query_scalar = fields.Number("query_pre_attn_scalar", 256, 1e-3, 1e9);
  // What other models say of it, "hidden_act", says nothing here.
  constexpr char kActivation[] = "hidden_activation";
  const std::string act = fields.String(kActivation, "gelu_pytorch_tanh");
  if (fields.status().ok() && act != "gelu_pytorch_tanh") {
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.Where(kActivation), " is ", JsonExcerpt(json(act)),
                     "; Baton knows \"gelu_pytorch_tanh\" with ",
                     ArchitectureName(config.architecture))));
  }
  // Of Gemma 2's, and of models that do not write.
  for (const char* const name :
       {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (const json* const value = fields.Find(name)) {
      fields.Fail(absl::UnimplementedError(
          absl::StrCat(fields.Where(name), " is ", JsonExcerpt(*value),
                       "; Baton knows none")));
    }
  }
  if (fields.Bool("use_bidirectional_attention", false)) {
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.Where("use_bidirectional_attention"),
                     " is true; Baton knows false")));
  }
}

}  // namespace baton::engine
