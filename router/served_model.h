// The model as the router needs it: text, limits and defaults, never weights.
// Constant after loading; safe to read from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "router/text/chat_template.h"
#include "router/text/tokenizer.h"
#include "router/tool_calls/tool_call_format.h"
#include "scheduling/request.h"

namespace baton::router {

struct ServedModel {
  // What clients call it.
  std::string name;
  // Of config.json; compared with what workers say of themselves.
  std::string architecture;
  int32_t vocab_size = 0;
  int32_t num_layers = 0;
  // Most tokens of one sequence, prompt and output together.
  int32_t max_context = 0;
  // The tokens that end an answer (generation_config.json, else config.json).
  std::vector<TokenId> eos_token_ids;
  // generation_config.json; neutral where it has nothing to say. The seed means
  // nothing here.
  scheduling::SamplingParams default_sampling;
  std::shared_ptr<const Tokenizer> tokenizer;
  // Null when the model has none, or none that can be read: `why_no_chat`.
  std::shared_ptr<const ChatTemplate> chat_template;
  std::string why_no_chat;
  // How it writes tool calls, if that is known.
  std::optional<ToolCallFormat> tool_calls;
  // Whether it thinks before it answers, between <think> and </think> in its
  // text, or in messages of their own:
  bool reasoning = false;
  // Its answers are messages (router/harmony), whose markers are in their text.
  bool harmony = false;
};

// Reads `model_dir`: config.json, tokenizer.json and, where there is one,
// generation_config.json; or, where it is a GGUF file, its metadata. An empty
// `served_name` takes the last part of the path. Errors name the file and the
// field.
absl::StatusOr<ServedModel> LoadServedModel(const std::string& model_dir,
                                            const std::string& served_name);

}  // namespace baton::router
