// What is asked of the clusters whose roles are tested.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "scheduling/role_balance.h"

namespace baton::scheduling {

// Steps of 50 ms, 10 of them fixed; 0.1 ms for each token. 100 tokens of each
// prompt are computed, and ten of the answer come from decode steps.
inline RoleLoad Plain() {
  RoleLoad load;
  load.mix = {.weight = 10'000,
              .computed_tokens = 100,
              .prompt_tokens = 100,
              .output_tokens = 11,
              .itl_target_seconds = 0.05 / 0.9};
  load.prefill_cost = load.decode_cost = {.fixed = 0.01, .per_token = 1e-4};
  load.token_budget = 100;
  load.most_streams = 1'000'000;
  return load;
}

// Anything that a cluster may be.
inline RoleLoad RandomLoad(std::mt19937_64* random) {
  const auto real = [&](double from, double to) {
    return std::exp(std::uniform_real_distribution<double>(
        std::log(from), std::log(to))(*random));
  };
  const auto cost = [&] {
    return StepCost{.fixed = real(1e-3, 1e-2),
                    .per_token = real(1e-5, 1e-4),
                    .per_context_token = real(1e-9, 1e-7),
                    .per_sequence = real(1e-6, 1e-4),
                    .per_prompt_context_token = real(1e-9, 1e-7)};
  };
  RoleLoad load;
  load.mix.weight = 100;
  load.mix.computed_tokens = real(10, 10'000);
  load.mix.prompt_tokens = load.mix.computed_tokens;
  load.mix.output_tokens = 1 + real(1, 1000);
  load.mix.stream_context = load.mix.prompt_tokens + load.mix.output_tokens / 2;
  load.mix.prompt_context =
      load.mix.computed_tokens * load.mix.computed_tokens / 2;
  load.mix.itl_target_seconds = real(0.015, 0.2);
  load.prefill_cost = cost();
  load.decode_cost = cost();
  load.token_budget = static_cast<int32_t>(real(100, 10'000));
  load.most_streams = static_cast<int32_t>(real(1, 1000));
  return load;
}

}  // namespace baton::scheduling
