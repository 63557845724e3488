#include "cli/sampling_flags.h"

namespace baton::cli {

void AddSamplingFlags(CLI::App* app, SamplingFlags* flags) {
  const char* group =
      "Sampling (default: what the model's "
      "generation_config.json says)";
  CLI::Option* temperature =
      app->add_option("--temperature", flags->temperature,
                      "0 is greedy; [0, 100]")
          ->group(group);
  app->add_flag("--greedy", flags->greedy,
                "Always the likeliest token: --temperature 0")
      ->excludes(temperature)
      ->group(group);
  app->add_option("--top-k", flags->top_k, "Keep the k likeliest; 0: all")
      ->group(group);
  app->add_option("--top-p", flags->top_p,
                  "Keep the likeliest with this much probability; (0, 1]")
      ->group(group);
  app->add_option("--min-p", flags->min_p,
                  "Keep those at least this fraction as likely as the "
                  "likeliest; [0, 1]")
      ->group(group);
  app->add_option("--repetition-penalty", flags->repetition_penalty,
                  "(0, 100]; 1: none")
      ->group(group);
  app->add_option("--presence-penalty", flags->presence_penalty,
                  "[-2, 2]; 0: none")
      ->group(group);
  app->add_option("--frequency-penalty", flags->frequency_penalty,
                  "[-2, 2]; 0: none")
      ->group(group);
  app->add_option("--seed", flags->seed,
                  "Equal seeds give equal answers; default: random")
      ->group(group);
}

void SetSampling(const SamplingFlags& flags, v1::SamplingParams* sampling) {
  if (flags.temperature) sampling->set_temperature(*flags.temperature);
  if (flags.greedy) sampling->set_temperature(0);
  if (flags.top_k) sampling->set_top_k(*flags.top_k);
  if (flags.top_p) sampling->set_top_p(*flags.top_p);
  if (flags.min_p) sampling->set_min_p(*flags.min_p);
  if (flags.repetition_penalty) {
    sampling->set_repetition_penalty(*flags.repetition_penalty);
  }
  if (flags.presence_penalty) {
    sampling->set_presence_penalty(*flags.presence_penalty);
  }
  if (flags.frequency_penalty) {
    sampling->set_frequency_penalty(*flags.frequency_penalty);
  }
  if (flags.seed) sampling->set_seed(*flags.seed);
}

}  // namespace baton::cli
