#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/dtype.h"
#include "engine/float_convert.h"
#include "engine/lora_adapter.h"
#include "engine/model_config.h"

namespace baton::test {
namespace {

using engine::DType;
using json = nlohmann::json;

// Uniform values from bits alone, so that every standard library draws the
// same.
class Uniform final {
 public:
  explicit Uniform(uint64_t seed) : bits_(seed) {}
  // In [-1, 1).
  float Next() {
    return static_cast<float>(static_cast<double>(bits_() >> 11) * 0x1p-52 -
                              1.0);
  }

 private:
  std::mt19937_64 bits_;
};

// Exact for the values that a half can hold; here only for weights of ordinary
// size, which it cuts towards zero.
uint16_t FloatToF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000u;
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xffu) - 112;
  if (exponent <= 0) return static_cast<uint16_t>(sign);
  CHECK_LT(exponent, 31);
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 |
                               (bits >> 13 & 0x3ffu));
}

// Collects tensors and writes them in the safetensors format.
class TensorFile final {
 public:
  TensorFile(DType dtype, uint64_t seed) : dtype_(dtype), random_(seed) {}

  // Values in `center` +- `spread`.
  void Add(const std::string& name, std::vector<int64_t> shape, float center,
           float spread) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    const size_t begin = data_.size();
    for (int64_t i = 0; i < count; ++i) {
      Append(center + spread * random_.Next());
    }
    header_[name] = {{"dtype", engine::DTypeName(dtype_)},
                     {"shape", shape},
                     {"data_offsets", {begin, data_.size()}}};
  }

  // A matrix whose products have about the size of their input.
  void AddMatrix(const std::string& name, int64_t outputs, int64_t inputs) {
    Add(name, {outputs, inputs}, 0.0f,
        std::sqrt(3.0f / static_cast<float>(inputs)));
  }

  std::string Serialize() const {
    std::string header = header_.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    std::string file(sizeof(length), '\0');
    std::memcpy(file.data(), &length, sizeof(length));
    return file + header + data_;
  }

 private:
  template <typename T>
  void AppendBytes(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    data_.append(bytes, sizeof(T));
  }
  void Append(float value) {
    if (dtype_ == DType::kF32) {
      AppendBytes(value);
    } else if (dtype_ == DType::kF16) {
      AppendBytes(FloatToF16(value));
    } else {
      AppendBytes(engine::FloatToBf16(value));
    }
  }

  const DType dtype_;
  Uniform random_;
  json header_ = json::object();
  std::string data_;
};

DType ParseDType(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    if (name == engine::DTypeName(dtype)) return dtype;
  }
  LOG(FATAL) << "not a weight type: " << name;
  return DType::kF32;
}

constexpr char kGlm[] = "Glm4MoeForCausalLM";
constexpr char kDeepseek[] = "DeepseekV3ForCausalLM";
constexpr char kGptOss[] = "GptOssForCausalLM";
constexpr char kGemma[] = "Gemma3ForCausalLM";

// Of latent attention, whatever dimension of heads the options have.
constexpr int32_t kRank = 32;
constexpr int32_t kNopeDim = 20;
constexpr int32_t kRopeDim = 12;
constexpr int32_t kValueDim = 64;

bool HasSharedExpert(const TinyModelOptions& o) {
  return o.architecture == kGlm || o.architecture == kDeepseek;
}

void AddLatentAttention(const TinyModelOptions& o, const std::string& attention,
                        TensorFile* file) {
  file->AddMatrix(attention + "q_a_proj.weight", o.query_rank, o.hidden);
  file->Add(attention + "q_a_layernorm.weight", {o.query_rank}, 1.0f, 0.3f);
  file->AddMatrix(attention + "q_b_proj.weight",
                  o.heads * (kNopeDim + kRopeDim), o.query_rank);
  file->AddMatrix(attention + "kv_a_proj_with_mqa.weight", kRank + kRopeDim,
                  o.hidden);
  file->Add(attention + "kv_a_layernorm.weight", {kRank}, 1.0f, 0.3f);
  file->AddMatrix(attention + "kv_b_proj.weight",
                  o.heads * (kNopeDim + kValueDim), kRank);
  file->AddMatrix(attention + "o_proj.weight", o.hidden, o.heads * kValueDim);
}

// All of a layer in one tensor, inputs before outputs, gate and up in turns.
void AddStackedExperts(const TinyModelOptions& o, const std::string& mlp,
                       TensorFile* file) {
  file->AddMatrix(mlp + "router.weight", o.experts, o.hidden);
  file->Add(mlp + "router.bias", {o.experts}, 0.0f, 0.3f);
  const auto add = [&](const std::string& name, int64_t inputs,
                       int64_t outputs) {
    file->Add(name, {o.experts, inputs, outputs}, 0.0f,
              std::sqrt(3.0f / static_cast<float>(inputs)));
    file->Add(name + "_bias", {o.experts, outputs}, 0.0f, 0.5f);
  };
  add(mlp + "experts.gate_up_proj", o.hidden, 2 * o.intermediate);
  add(mlp + "experts.down_proj", o.intermediate, o.hidden);
}

void AddExperts(const TinyModelOptions& o, const std::string& prefix,
                TensorFile* file) {
  const bool mixtral = o.architecture == "MixtralForCausalLM";
  const std::string block = prefix + (mixtral ? "block_sparse_moe." : "mlp.");
  file->AddMatrix(block + "gate.weight", o.experts, o.hidden);
  const bool shared = HasSharedExpert(o);
  if (shared) {
    file->Add(block + "gate.e_score_correction_bias", {o.experts}, 0.0f, 0.3f);
  }
  for (int32_t i = 0; i < o.experts + (shared ? 1 : 0); ++i) {
    const std::string expert = i < o.experts
                                   ? absl::StrCat(block, "experts.", i, ".")
                                   : block + "shared_experts.";
    file->AddMatrix(expert + (mixtral ? "w1.weight" : "gate_proj.weight"),
                    o.intermediate, o.hidden);
    file->AddMatrix(expert + (mixtral ? "w3.weight" : "up_proj.weight"),
                    o.intermediate, o.hidden);
    file->AddMatrix(expert + (mixtral ? "w2.weight" : "down_proj.weight"),
                    o.hidden, o.intermediate);
  }
}

void AddLayer(const TinyModelOptions& o, int32_t index, TensorFile* file) {
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const int64_t q_size = int64_t{o.heads} * o.head_dim;
  const int64_t kv_size = int64_t{o.kv_heads} * o.head_dim;
  file->Add(prefix + "input_layernorm.weight", {o.hidden}, 1.0f, 0.3f);
  file->Add(prefix + "post_attention_layernorm.weight", {o.hidden}, 1.0f, 0.3f);
  const bool gemma = o.architecture == kGemma;
  if (gemma) {
    for (const char* const norm : {"pre_feedforward", "post_feedforward"}) {
      file->Add(absl::StrCat(prefix, norm, "_layernorm.weight"), {o.hidden},
                0.0f, 0.3f);
    }
  }
  const std::string attention = prefix + "self_attn.";
  if (o.architecture == kDeepseek) {
    AddLatentAttention(o, attention, file);
  } else {
    file->AddMatrix(attention + "q_proj.weight", q_size, o.hidden);
    file->AddMatrix(attention + "k_proj.weight", kv_size, o.hidden);
    file->AddMatrix(attention + "v_proj.weight", kv_size, o.hidden);
    file->AddMatrix(attention + "o_proj.weight", o.hidden, q_size);
  }
  const bool gpt_oss = o.architecture == kGptOss;
  if (o.architecture == "Qwen2ForCausalLM" || o.architecture == kGlm ||
      gpt_oss) {
    file->Add(attention + "q_proj.bias", {q_size}, 0.0f, 0.5f);
    file->Add(attention + "k_proj.bias", {kv_size}, 0.0f, 0.5f);
    file->Add(attention + "v_proj.bias", {kv_size}, 0.0f, 0.5f);
  }
  if (gpt_oss) {
    file->Add(attention + "o_proj.bias", {o.hidden}, 0.0f, 0.5f);
    file->Add(attention + "sinks", {o.heads}, 0.0f, 2.0f);
    return AddStackedExperts(o, prefix + "mlp.", file);
  }
  const bool qwen3_moe = o.architecture == "Qwen3MoeForCausalLM";
  if (o.architecture == "Qwen3ForCausalLM" || qwen3_moe || gemma) {
    file->Add(attention + "q_norm.weight", {o.head_dim}, 1.0f, 0.3f);
    file->Add(attention + "k_norm.weight", {o.head_dim}, 1.0f, 0.3f);
  }
  if (o.architecture == "MixtralForCausalLM" ||
      ((qwen3_moe || HasSharedExpert(o)) &&
       !(index == 0 && o.first_layer_dense))) {
    AddExperts(o, prefix, file);
    return;
  }
  file->AddMatrix(prefix + "mlp.gate_proj.weight", o.intermediate, o.hidden);
  file->AddMatrix(prefix + "mlp.up_proj.weight", o.intermediate, o.hidden);
  file->AddMatrix(prefix + "mlp.down_proj.weight", o.hidden, o.intermediate);
}

std::string Tensors(const TinyModelOptions& o) {
  TensorFile file(ParseDType(o.dtype), o.seed);
  file.Add("model.embed_tokens.weight", {o.vocab_size, o.hidden}, 0.0f, 1.0f);
  for (int32_t i = 0; i < o.layers; ++i) {
    AddLayer(o, i, &file);
  }
  file.Add("model.norm.weight", {o.hidden}, 1.0f, 0.3f);
  if (!o.tie_word_embeddings) {
    file.AddMatrix("lm_head.weight", o.vocab_size, o.hidden);
  }
  return file.Serialize();
}

json Config(const TinyModelOptions& o) {
  json config = {{"architectures", {o.architecture}},
                 {"hidden_size", o.hidden},
                 {"num_hidden_layers", o.layers},
                 {"num_attention_heads", o.heads},
                 {"num_key_value_heads", o.kv_heads},
                 {"head_dim", o.head_dim},
                 {"intermediate_size", o.intermediate},
                 {"vocab_size", o.vocab_size},
                 {"max_position_embeddings", o.max_position},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", o.rope_theta},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", o.tie_word_embeddings},
                 {"bos_token_id", kTinyModelBos},
                 {"eos_token_id", kTinyModelEos}};
  if (o.architecture == "MixtralForCausalLM" || o.architecture == kGptOss) {
    config["num_local_experts"] = o.experts;
    config["num_experts_per_tok"] = o.experts_per_token;
  } else if (o.architecture == "Qwen3MoeForCausalLM") {
    config["num_experts"] = o.experts;
    config["num_experts_per_tok"] = o.experts_per_token;
    config["moe_intermediate_size"] = o.intermediate;
    config["norm_topk_prob"] = true;
    config["mlp_only_layers"] =
        o.first_layer_dense ? json::array({0}) : json::array();
  } else if (HasSharedExpert(o)) {
    config["n_routed_experts"] = o.experts;
    config["n_shared_experts"] = 1;
    config["num_experts_per_tok"] = o.experts_per_token;
    config["moe_intermediate_size"] = o.intermediate;
    config["norm_topk_prob"] = true;
    config["routed_scaling_factor"] = 1.5;
    config["first_k_dense_replace"] = o.first_layer_dense ? 1 : 0;
    if (o.architecture == kGlm) {
      config["attention_bias"] = true;
      config["partial_rotary_factor"] = 0.5;
    }
  }
  if (o.architecture == kDeepseek) {
    // Its experts are in groups where there are enough.
    config["n_group"] = o.experts % 3 == 0 ? 3 : 1;
    config["topk_group"] = o.experts % 3 == 0 ? 2 : 1;
    config["q_lora_rank"] = o.query_rank;
    config["kv_lora_rank"] = kRank;
    config["qk_nope_head_dim"] = kNopeDim;
    config["qk_rope_head_dim"] = kRopeDim;
    config["v_head_dim"] = kValueDim;
  }
  if (o.architecture == kGptOss) {
    // One that is reached.
    config["swiglu_limit"] = 1.5;
    config["sliding_window"] = nullptr;
  }
  if (o.architecture == kGemma) {
    // Others say it of another activation, which says nothing here.
    config.erase("hidden_act");
    config["query_pre_attn_scalar"] = o.head_dim + 3;
    config["rope_local_base_freq"] = 100.0;
    config["sliding_window"] = nullptr;
    config["sliding_window_pattern"] = 2;
  }
  if (o.sliding_window) config["sliding_window"] = *o.sliding_window;
  return config;
}

std::string Utf8(int32_t code_point) {
  CHECK_LT(code_point, 0x800);
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The characters that stand for bytes in byte-level vocabularies: printable
// Latin-1 characters stand for themselves, the others for 256, 257, ...
std::vector<std::string> ByteSymbols() {
  std::vector<std::string> symbols;
  int32_t next = 256;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) ||
                           (byte >= 161 && byte <= 172) || byte >= 174;
    symbols.push_back(Utf8(printable ? byte : next++));
  }
  return symbols;
}

json Tokenizer(const TinyModelOptions& o) {
  json vocab = json::object();
  const std::vector<std::string> symbols = ByteSymbols();
  for (int32_t byte = 0; byte < 256; ++byte) vocab[symbols[byte]] = byte;
  // An added token that the vocabulary lacks would get the first free id after
  // it, whatever its own entry says.
  vocab["<|bos|>"] = kTinyModelBos;
  vocab["<|eos|>"] = kTinyModelEos;
  for (int32_t id = kTinyModelEos + 1; id < o.vocab_size; ++id) {
    // U+0120 stands for the space.
    vocab[absl::StrCat(Utf8(0x120), "word", id)] = id;
  }
  const auto special = [](TokenId id, const char* content) {
    return json{{"id", id},        {"content", content}, {"single_word", false},
                {"lstrip", false}, {"rstrip", false},    {"normalized", false},
                {"special", true}};
  };
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const json bos = {{"SpecialToken", {{"id", "<|bos|>"}, {"type_id", 0}}}};
  const auto sequence = [](const char* id, int32_t type) {
    return json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens",
       {special(kTinyModelBos, "<|bos|>"), special(kTinyModelEos, "<|eos|>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {bos, sequence("A", 0)}},
        {"pair", {bos, sequence("A", 0), sequence("B", 1)}},
        {"special_tokens",
         {{"<|bos|>",
           {{"id", "<|bos|>"},
            {"ids", {kTinyModelBos}},
            {"tokens", {"<|bos|>"}}}}}}}},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", vocab},
        {"merges", json::array()}}}};
}

json TokenizerConfig(const TinyModelOptions& o) {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"bos_token", "<|bos|>"},
          {"eos_token", "<|eos|>"},
          {"model_max_length", o.max_position},
          {"clean_up_tokenization_spaces", false},
          {"chat_template",
           "{{ bos_token }}{% for message in messages %}"
           "{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
           "{% if add_generation_prompt %}assistant:{% endif %}"}};
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << content;
  out.close();
  if (!out) return absl::InternalError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteTinyModel(const std::string& dir,
                            const TinyModelOptions& options) {
  CHECK_GT(options.vocab_size, kTinyModelEos);
  CHECK_EQ(options.heads % options.kv_heads, 0);
  CHECK_EQ(options.head_dim % 2, 0);
  std::error_code error;
  std::filesystem::create_directory(dir, error);
  if (error) {
    return absl::InternalError(
        absl::StrCat("cannot create ", dir, ": ", error.message()));
  }
  const json generation = {{"bos_token_id", kTinyModelBos},
                           {"eos_token_id", kTinyModelEos}};
  BATON_RETURN_IF_ERROR(
      WriteFile(dir + "/config.json", Config(options).dump(1)));
  BATON_RETURN_IF_ERROR(
      WriteFile(dir + "/generation_config.json", generation.dump(1)));
  BATON_RETURN_IF_ERROR(
      WriteFile(dir + "/tokenizer.json", Tokenizer(options).dump(1)));
  BATON_RETURN_IF_ERROR(WriteFile(dir + "/tokenizer_config.json",
                                  TokenizerConfig(options).dump(1)));
  return WriteFile(dir + "/model.safetensors", Tensors(options));
}

absl::Status WriteTinyAdapter(const std::string& dir,
                              const std::string& model_dir,
                              const TinyAdapterOptions& options) {
  BATON_ASSIGN_OR_RETURN(const engine::ModelConfig config,
                         engine::LoadModelConfig(model_dir));
  std::error_code error;
  std::filesystem::create_directory(dir, error);
  if (error) {
    return absl::InternalError(
        absl::StrCat("cannot create ", dir, ": ", error.message()));
  }
  const char* const modules[] = {"self_attn.q_proj", "self_attn.k_proj",
                                 "self_attn.v_proj", "self_attn.o_proj",
                                 "mlp.gate_proj",    "mlp.up_proj",
                                 "mlp.down_proj"};
  TensorFile file(ParseDType(options.dtype), options.seed);
  json targets = json::array();
  for (int i = 0; i < engine::kNumLoraTargets; ++i) {
    const std::string module = modules[i];
    const std::string name = module.substr(module.find('.') + 1);
    if (!options.modules.empty() &&
        std::count(options.modules.begin(), options.modules.end(), name) == 0) {
      continue;
    }
    targets.push_back(name);
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      const std::optional<engine::LoraShape> shape =
          engine::LoraShapeOf(config, layer, engine::LoraTarget{i});
      if (!shape.has_value()) continue;
      const std::string prefix = absl::StrCat("base_model.model.model.layers.",
                                              layer, ".", module, ".lora_");
      file.AddMatrix(prefix + "A.weight", options.rank, shape->inputs);
      file.Add(prefix + "B.weight", {shape->outputs, options.rank}, 0.0f,
               options.strength);
    }
  }
  const json adapter_config = {{"peft_type", "LORA"},
                               {"r", options.rank},
                               {"lora_alpha", options.alpha},
                               {"bias", "none"},
                               {"target_modules", targets}};
  BATON_RETURN_IF_ERROR(
      WriteFile(dir + "/adapter_config.json", adapter_config.dump(1)));
  return WriteFile(dir + "/adapter_model.safetensors", file.Serialize());
}

}  // namespace baton::test
