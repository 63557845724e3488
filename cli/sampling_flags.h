// The flags that say how tokens are drawn, of the commands that ask for text.
// Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include <CLI/CLI.hpp>

#include "baton/v1/inference.pb.h"

namespace baton::cli {

// What is not set is left to the model's generation_config.json.
struct SamplingFlags {
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<uint64_t> seed;
  bool greedy = false;
};

void AddSamplingFlags(CLI::App* app, SamplingFlags* flags);
void SetSampling(const SamplingFlags& flags, v1::SamplingParams* sampling);

}  // namespace baton::cli
