// Whole GGUF files: the container, and what is read from its metadata: the
// model's summary and its tokenizer.
#include "common/gguf/gguf_file.h"
#include "common/gguf/gguf_summary.h"
#include "common/log.h"
#include "router/text/gguf_tokenizer.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

FUZZ_TARGET(gguf)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  const std::string bytes = baton::fuzz::Exactly(input.Rest());
  const auto file =
      baton::gguf::GgufFile::Parse(baton::fuzz::AsBytes(bytes), "model.gguf");
  if (!file.ok()) {
    CHECK(!file.status().message().empty());
    return 0;
  }
  unsigned sum = 0;
  for (const auto& tensor : (*file)->tensors()) {
    for (const std::byte byte : tensor.bytes) {
      sum += std::to_integer<unsigned>(byte);
    }
    CHECK((*file)->FindTensor(tensor.name) != nullptr);
  }
  volatile unsigned used = sum;
  static_cast<void>(used);
  const auto summary = baton::gguf::ReadSummary(**file);
  if (!summary.ok()) CHECK(!summary.status().message().empty());
  const auto tokenizer = baton::router::GgufTokenizerJson(**file);
  if (!tokenizer.ok()) CHECK(!tokenizer.status().message().empty());
  return 0;
}
