#include "tests/bench/planner_benchmark_mixes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "planner/roofline.h"

namespace baton::bench {
namespace {

// Longer than what the longest answers of a phase take, so that it is mostly
// its own requests that a phase is about.
constexpr double kPhaseSeconds = 120;

// Means about those of the traces that they are called by (Azure 2023, Mooncake
// 2025); made up, so that any number of workers can be given their load.
constexpr Mix kMixes[] = {
    {.name = "short chat",
     .lengths = {{50, 450}, {50, 350}},
     .ttft = absl::Seconds(1),
     .itl = absl::Milliseconds(50),
     .first_rate = 4},
    {.name = "azure conversation",
     .lengths = {{200, 2100}, {20, 400}},
     .ttft = absl::Seconds(2),
     .itl = absl::Milliseconds(50),
     .first_rate = 2},
    {.name = "mooncake conversation",
     .lengths = {{2000, 22000}, {50, 640}},
     .ttft = absl::Seconds(15),
     .itl = absl::Milliseconds(60),
     .first_rate = 0.2},
    {.name = "long prompts",
     .lengths = {{8000, 24000}, {10, 100}},
     .ttft = absl::Seconds(15),
     .itl = absl::Milliseconds(60),
     .first_rate = 0.2},
    // Azure's code trace has such prompts and answers; then people write.
    {.name = "code and writing in turn",
     .lengths = {{500, 3500}, {5, 55}},
     .ttft = absl::Seconds(2),
     .itl = absl::Milliseconds(50),
     .first_rate = 1,
     .in_turn = Lengths{{50, 450}, {200, 1000}}},
};

workload::SyntheticOptions Synthetic(const Lengths& lengths, double rate,
                                     double seconds) {
  workload::SyntheticOptions options;
  options.arrivals.rate = rate;
  options.prompt = lengths.prompt;
  options.output = lengths.output;
  options.duration = absl::Seconds(seconds);
  return options;
}

planner::Load InTurn(const Mix& mix, double rate, int phases) {
  planner::Load load;
  for (int phase = 0; phase < phases; ++phase) {
    workload::SyntheticOptions options = Synthetic(
        phase % 2 == 0 ? mix.lengths : *mix.in_turn, rate, kPhaseSeconds);
    options.seed += phase;
    options.arrivals.seed += phase;
    for (workload::PlannedRequest request : workload::MakeSynthetic(options)) {
      request.at += load.window;
      load.requests.push_back(request);
    }
    load.window += options.duration;
  }
  return load;
}

}  // namespace

absl::Span<const Mix> AllMixes() { return kMixes; }

const Mix* FindMix(const std::string& name) {
  const auto found =
      std::find_if(std::begin(kMixes), std::end(kMixes),
                   [&](const Mix& mix) { return name == mix.name; });
  return found == std::end(kMixes) ? nullptr : found;
}

planner::ClusterProfile Profile() {
  const planner::ModelGeometry model = {.name = "70B",
                                        .layer_parameters = 68.5e9,
                                        .head_parameters = 1.05e9,
                                        .weight_bytes = 70e9,
                                        .kv_bytes_per_token = 327680,
                                        .num_layers = 80,
                                        .q_size = 8192,
                                        .max_context = 131072};
  const auto profile = planner::RooflineProfile(
      *planner::FindGpu("H200"), model, planner::RooflineOptions());
  if (!profile.ok()) std::abort();
  return *profile;
}

planner::Load MakeLoad(const Mix& mix, double rate, double seconds) {
  if (mix.in_turn.has_value()) {
    return InTurn(
        mix, rate,
        2 * static_cast<int>(std::ceil(seconds / (2 * kPhaseSeconds))));
  }
  const workload::SyntheticOptions options =
      Synthetic(mix.lengths, rate, seconds);
  return {workload::MakeSynthetic(options), options.duration};
}

planner::SimulationOptions Cluster(const Mix& mix, int32_t prefill,
                                   int32_t decode) {
  planner::SimulationOptions options;
  options.profile = Profile();
  options.num_prefill = prefill;
  options.num_decode = decode;
  options.targets = {mix.ttft, mix.itl};
  options.timeout_seconds = 120;
  return options;
}

}  // namespace baton::bench
