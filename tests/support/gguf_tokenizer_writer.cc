#include <string>
#include <vector>

#include "common/json.h"
#include "tests/support/gguf_writer.h"

namespace baton::test {
namespace {

using nlohmann::json;

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4,
                  kByte = 6;

constexpr char kTwoSpaces[] = "\u2581\u2581";

bool IsByteToken(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x");
}

}  // namespace

void AddGgufTokenizer(const json& root, const std::string& pre,
                      GgufWriter& writer) {
  const json& model = root.at("model");
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  const auto set = [&](size_t id, const std::string& token, int32_t type) {
    if (tokens.size() <= id) {
      tokens.resize(id + 1);
      types.resize(id + 1, kNormal);
    }
    tokens[id] = token;
    types[id] = type;
  };
  for (const auto& [token, id] : model.at("vocab").items()) {
    set(id.get<size_t>(), token,
        pre.empty() && IsByteToken(token) ? kByte : kNormal);
  }
  for (const json& added : root.at("added_tokens")) {
    const std::string content = added.at("content");
    set(added.at("id").get<size_t>(), content,
        content == "<unk>"                ? kUnknown
        : added.at("special").get<bool>() ? kControl
                                          : kUserDefined);
  }
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddInts("tokenizer.ggml.token_type", types);
  if (pre.empty()) {
    writer.AddString("tokenizer.ggml.model", "llama");
    // As in the SentencePiece models of Llama and Mistral: tokens in the order
    // of their scores, runs of spaces after all others.
    std::vector<float> scores;
    for (size_t id = 0; id < tokens.size(); ++id) {
      const bool spaces = tokens[id].starts_with(kTwoSpaces) &&
                          tokens[id].ends_with(kTwoSpaces);
      scores.push_back(types[id] != kNormal ? 0.0f
                       : spaces             ? -1e9f
                                            : -static_cast<float>(id));
    }
    writer.AddFloats("tokenizer.ggml.scores", scores);
    writer.AddUint32("tokenizer.ggml.unknown_token_id", 0);
    writer.AddUint32("tokenizer.ggml.bos_token_id", 1);
    writer.AddUint32("tokenizer.ggml.eos_token_id", 2);
    return;
  }
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", pre);
  std::vector<std::string> merges;
  for (const json& merge : model.at("merges")) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " +
                                             merge[1].get<std::string>());
  }
  writer.AddStrings("tokenizer.ggml.merges", merges);
}

}  // namespace baton::test
