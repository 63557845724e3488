// Writes GGUF files, right ones and, for tests of readers, odd ones.
//
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/json.h"

namespace baton::test {

class GgufWriter final {
 public:
  explicit GgufWriter(uint32_t version = 3, int64_t alignment = 32)
      : version_(version), alignment_(alignment) {}

  // Metadata; a key or tensor that is there is replaced. The alignment is not
  // written by itself.
  void AddUint32(absl::string_view key, uint32_t value);
  void AddFloat(absl::string_view key, float value);
  void AddBool(absl::string_view key, bool value);
  void AddString(absl::string_view key, absl::string_view value);
  void AddStrings(absl::string_view key, absl::Span<const std::string> values);
  void AddInts(absl::string_view key, absl::Span<const int32_t> values);
  void AddFloats(absl::string_view key, absl::Span<const float> values);
  // A value of any type, by its number and its bytes as the file has them.
  void AddRaw(absl::string_view key, uint32_t type, absl::string_view bytes);

  // `shape` outermost first. `bytes` are the elements in GGUF's `type`.
  void AddTensor(absl::string_view name, uint32_t type,
                 absl::Span<const int64_t> shape, absl::string_view bytes);

  // Takes away the key or tensor of that name, which must be there.
  void Remove(absl::string_view name);

  std::string Finish() const;

 private:
  struct Tensor {
    uint32_t type;
    std::vector<int64_t> shape;
    std::string bytes;
  };

  uint32_t version_;
  int64_t alignment_;
  std::map<std::string, std::string> values_;  // with their types
  std::map<std::string, Tensor> tensors_;
};

// The bytes of a number, and of a string with its length before it.
template <typename T>
std::string NumberBytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
std::string StringBytes(absl::string_view text);

// A Hugging Face model directory (Llama, Mixtral, Qwen2, Qwen3, Phi-3, SmolLM3, GLM,
// gpt-oss) as a GGUF file:
// every matrix as it is stored, vectors and expert routers as F32, rows of q
// and k in the order that GGUF has for the architecture, no tokenizer. Experts
// are in one tensor, or with `experts_apart` in one each. CHECK-fails where the
// directory cannot be loaded or GGUF has no place for what its config says.
GgufWriter GgufOfModelDir(const std::string& dir, bool experts_apart = false);

// Adds the tokenizer of a tokenizer.json, as a converter writes it: byte-level
// with this tokenizer.ggml.pre, or SentencePiece where `pre` is empty. The
// tokens of beginning and end are set for SentencePiece only.
void AddGgufTokenizer(const nlohmann::json& root, const std::string& pre,
                      GgufWriter& writer);

}  // namespace baton::test
