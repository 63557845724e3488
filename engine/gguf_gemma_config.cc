// Names of keys, and what files leave unsaid, are llama.cpp's.
#include "engine/gguf_gemma_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "engine/gemma_config.h"
#include "engine/model_limits.h"

namespace baton::engine {
namespace {

// Gemma 3 27B, whose scores are by another length than that of its heads.
constexpr int32_t kLayersOf27B = 62;

std::string Key(absl::string_view name) {
  return absl::StrCat("gemma3.", name);
}

}  // namespace

absl::Status ReadGgufGemma(const gguf::GgufFile& file, ModelConfig& config) {
  SetGemma(config);
  config.query_scalar = config.num_layers == kLayersOf27B
                            ? config.hidden_size / config.num_heads
                            : config.head_dim;
  for (const absl::string_view name :
       {"attn_logit_softcapping", "final_logit_softcapping"}) {
    const std::string key = Key(name);
    if (!file.Has(key)) continue;
    BATON_ASSIGN_OR_RETURN(const double cap, file.Number(key, 0.0, 1e9));
    if (cap != 0) {
      return absl::UnimplementedError(
          absl::StrCat(file.path(), ": ", key, " is ", cap, "; Baton knows 0"));
    }
  }
  config.sliding_rope_theta = kGemmaSlidingTheta;
  const std::string theta = Key("rope.freq_base_swa");
  if (file.Has(theta)) {
    BATON_ASSIGN_OR_RETURN(config.sliding_rope_theta,
                           file.Number(theta, 1.0, 1e12));
  }
  const std::string window_key = Key("attention.sliding_window");
  int64_t window = 0;
  if (file.Has(window_key)) {
    BATON_ASSIGN_OR_RETURN(window, file.Integer(window_key, 0, kMaxPosition));
  }
  if (window == 0) return absl::OkStatus();
  const std::string pattern_key = Key("attention.sliding_window_pattern");
  int64_t pattern = kGemmaSlidingPattern;
  if (file.Has(pattern_key)) {
    BATON_ASSIGN_OR_RETURN(pattern, file.Integer(pattern_key, 1, kMaxLayers));
  }
  if (pattern == 1) return absl::OkStatus();
  config.sliding_window = static_cast<int32_t>(window);
  if (config.num_layers >= pattern) {
    config.layer_slides =
        GemmaLayersThatSlide(config.num_layers, static_cast<int32_t>(pattern));
  }
  return absl::OkStatus();
}

}  // namespace baton::engine
