// Whole safetensors files.
#include "common/log.h"
#include "engine/safetensors.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

FUZZ_TARGET(safetensors)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  const std::string file = baton::fuzz::Exactly(input.Rest());
  const auto tensors = baton::engine::ParseSafetensors(
      baton::fuzz::AsBytes(file), "model.safetensors");
  if (!tensors.ok()) {
    CHECK(!tensors.status().message().empty());
    return 0;
  }
  size_t bytes = 0;
  unsigned sum = 0;
  for (const auto& tensor : *tensors) {
    int64_t elements = 1;
    for (const int64_t dimension : tensor.shape) elements *= dimension;
    CHECK_EQ(elements, tensor.num_elements());
    for (const std::byte byte : tensor.bytes) {
      sum += std::to_integer<unsigned>(byte);
    }
    bytes += tensor.bytes.size();
  }
  // They fill the data, and nothing else.
  CHECK_LE(bytes, file.size());
  volatile unsigned used = sum;
  static_cast<void>(used);
  return 0;
}
