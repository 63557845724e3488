// The geometry of well-known models, by name: for models of random weights that
// cost what the real ones cost.
//
// Constant; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model_config.h"

namespace baton::model_tools {

struct ModelShape {
  const char* name;
  // As the model's config.json says. The special tokens are not the model's
  // own, but those of the made-up tokenizer (synth_tokenizer.h).
  engine::ModelConfig config;
};

// From the smallest to the largest.
absl::Span<const ModelShape> ModelShapes();

// Upper and lower case are the same. NotFound lists the names.
absl::StatusOr<ModelShape> FindModelShape(absl::string_view name);

// What a user changes of a shape.
struct ShapeChanges {
  std::optional<int32_t> layers;
  std::optional<int32_t> hidden;
  std::optional<int32_t> heads;
  std::optional<int32_t> kv_heads;
  std::optional<int32_t> head_dim;
  std::optional<int32_t> intermediate;
  std::optional<int32_t> vocab;
  std::optional<int32_t> max_position;
  std::optional<bool> tie_word_embeddings;

  bool empty() const;
};

// The changed geometry. InvalidArgument names the flag (--heads, ...) when it
// makes no model.
absl::StatusOr<engine::ModelConfig> ChangeShape(engine::ModelConfig config,
                                                const ShapeChanges& changes);

}  // namespace baton::model_tools
