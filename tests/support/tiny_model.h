// Writes a small random Llama-family model as a Hugging Face directory:
// config.json, generation_config.json, model.safetensors, tokenizer.json and
// tokenizer_config.json; and LoRA adapters of such a model. For tests that need
// a real model to load; the same options always write the same bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"

namespace baton::test {

struct TinyModelOptions {
  // Picks the weights.
  uint64_t seed = 1;
  // "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM" (with QKV
  // bias), "Qwen3ForCausalLM" (with QK norm), "SmolLM3ForCausalLM",
  // "Gemma3ForCausalLM", or, with experts,
  // "MixtralForCausalLM", "Qwen3MoeForCausalLM" (with QK norm),
  // "Glm4MoeForCausalLM" (with QKV bias, a choice bias and a shared expert),
  // "DeepseekV3ForCausalLM" (the same without QKV bias, and with latent
  // attention of sizes of its own; in three groups where `experts` are) or
  // "GptOssForCausalLM" (with all biases and sinks, its experts by input).
  std::string architecture = "LlamaForCausalLM";
  int32_t layers = 2;
  int32_t hidden = 64;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 16;      // even
  int32_t intermediate = 96;  // of one expert where there are some
  int32_t query_rank = 24;    // of latent attention
  int32_t experts = 5;
  int32_t experts_per_token = 2;
  // Not "MixtralForCausalLM" and "GptOssForCausalLM": the first layer has none.
  bool first_layer_dense = false;
  // Ids 0..255 are the bytes, 256 and 257 the special tokens below, the rest
  // are words that no text encodes to. At least 258.
  int32_t vocab_size = 320;
  int32_t max_position = 512;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = true;
  // "MistralForCausalLM" and, there of every other layer, "GptOssForCausalLM"
  // and "Gemma3ForCausalLM".
  std::optional<int32_t> sliding_window;
  // Element type of the tensors: "F32", "F16" or "BF16".
  std::string dtype = "BF16";
};

// The special tokens: "<|bos|>", which the tokenizer puts before a text, and
// "<|eos|>".
inline constexpr TokenId kTinyModelBos = 256;
inline constexpr TokenId kTinyModelEos = 257;

// Creates `dir` (its parent must exist) and writes the files, replacing what is
// there. CHECK-fails on options that make no model; errors name the file.
absl::Status WriteTinyModel(const std::string& dir,
                            const TinyModelOptions& options = {});

struct TinyAdapterOptions {
  uint64_t seed = 1;
  int32_t rank = 8;
  double alpha = 16;
  // The matrices that it adds to, as PEFT calls them, in all layers that have
  // them; empty: all seven.
  std::vector<std::string> modules;
  // B has values in [-strength, strength]: 0 adds nothing.
  float strength = 0.1f;
  std::string dtype = "BF16";
};

// Creates `dir` and writes a random LoRA adapter of the model in `model_dir`
// as PEFT does: adapter_config.json and adapter_model.safetensors. Errors name
// the file.
absl::Status WriteTinyAdapter(const std::string& dir,
                              const std::string& model_dir,
                              const TinyAdapterOptions& options = {});

}  // namespace baton::test
