// What the hand-off adds to a request when most of it hides behind computing:
// real processes on this machine (a router, a prefill and a decode worker),
// long prompts one after another. Prints a table; not a test, because the time
// is the machine's.
//
//   handoff_exposed_benchmark MODEL_DIR [--prompt 2048] [--requests 9]
//                             [--threads 1,2] [--transport auto]
//
// MODEL_DIR: such as `baton synth SmolLM2-135M DIR` makes. --threads: of each
// engine, one run each. Prompts are all different, so that no prefix is shared.
// Medians; the first request after the start is shown by itself.
//
//   TTFT      at the router: request read -> first token sent
//   exposed   the prompt is computed -> the decode worker's word that all KV is
//             there and verified: what computing did not hide
//   to run    exposed, and until the decode worker's first step with it
//   transfer  first byte sent -> verified; most of it while layers computed
//   gap       first token -> second token, at the client
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/log.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"

namespace baton::test {
namespace {

struct Settings {
  std::string model_dir;
  int prompt_tokens = 2048;
  int requests = 9;
  std::vector<std::string> threads = {"1", "2"};
  std::string transport = "auto";
};

bool Parse(int argc, char** argv, Settings* settings) {
  if (argc < 2 || argc % 2 != 0) return false;
  settings->model_dir = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--prompt") {
      settings->prompt_tokens = std::atoi(argv[i + 1]);
    } else if (flag == "--requests") {
      settings->requests = std::atoi(argv[i + 1]);
    } else if (flag == "--threads") {
      settings->threads = absl::StrSplit(argv[i + 1], ',');
    } else if (flag == "--transport") {
      settings->transport = argv[i + 1];
    } else {
      return false;
    }
  }
  return settings->prompt_tokens > 0 && settings->requests > 1;
}

// One request, in milliseconds.
struct Sample {
  double ttft = 0;
  double exposed = 0;
  double to_run = 0;
  double transfer = 0;
  double gap = 0;
  double bytes = 0;
};

Sample RunRequest(v1::Inference::Stub& stub, const Settings& settings, int i) {
  // Any model has so many; prompts differ from their first token on.
  constexpr int kTokens = 251;
  std::vector<TokenId> prompt;
  for (int k = 0; k < settings.prompt_tokens; ++k) {
    prompt.push_back(1 + (k * 37 + i + k * k % 101) % kTokens);
  }
  const Clock* const clock = Clock::Monotonic();
  absl::Time first = absl::InfinitePast();
  Sample sample;
  const Answer answer =
      Generate(stub, GreedyRequest(prompt, 16), 4 * kPatience,
               [&](const v1::GenerateResponse&, size_t tokens) {
                 const absl::Time now = clock->Now();
                 if (tokens >= 1 && first == absl::InfinitePast()) {
                   first = now;
                 } else if (tokens >= 2 && sample.gap == 0) {
                   sample.gap = absl::ToDoubleMilliseconds(now - first);
                 }
                 return true;
               });
  CHECK(answer.status.ok()) << answer.status;
  const v1::Timing& timing = answer.last.timing();
  CHECK_GT(timing.kv_transfer_bytes(), 0u) << "nothing was handed over";
  sample.ttft = timing.ttft_seconds() * 1e3;
  sample.exposed = timing.kv_transfer_exposed_seconds() * 1e3;
  sample.to_run = sample.exposed + timing.decode_queue_seconds() * 1e3;
  sample.transfer = timing.kv_transfer_seconds() * 1e3;
  sample.bytes = static_cast<double>(timing.kv_transfer_bytes());
  return sample;
}

double Median(const std::vector<Sample>& samples, double Sample::*field) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.*field);
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void PrintRow(const std::string& threads, const char* which,
              const std::vector<Sample>& samples) {
  const double ttft = Median(samples, &Sample::ttft);
  const double exposed = Median(samples, &Sample::exposed);
  const double to_run = Median(samples, &Sample::to_run);
  std::printf(
      "| %s | %s | %.1f | %.0f | %.0f | %.2f | **%.2f %%** | %.2f | %.2f %% | "
      "%.1f |\n",
      threads.c_str(), which, Median(samples, &Sample::bytes) / 1e6, ttft,
      Median(samples, &Sample::transfer), exposed, 100 * exposed / ttft, to_run,
      100 * to_run / ttft, Median(samples, &Sample::gap));
  std::fflush(stdout);
}

void Measure(const Settings& settings, const std::string& threads) {
  Cluster cluster(settings.model_dir);
  const Flags worker = {"--threads", threads, "--transport",
                        settings.transport};
  const absl::Status started =
      cluster.Start({.prefill = {worker}, .decode = {worker}});
  CHECK(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  std::vector<Sample> samples;
  for (int i = 0; i < settings.requests; ++i) {
    samples.push_back(RunRequest(*stub, settings, i));
  }
  PrintRow(threads, "first", {samples[0]});
  PrintRow(threads, "others", {samples.begin() + 1, samples.end()});
}

int Main(int argc, char** argv) {
  Settings settings;
  if (!Parse(argc, argv, &settings)) {
    std::fprintf(stderr, "see the top of handoff_exposed_benchmark.cc\n");
    return 2;
  }
  InitLogging("handoff_exposed_benchmark");
  std::printf(
      "%d requests of %d tokens, --transport %s\n\n"
      "| threads | requests | MB | TTFT, ms | transfer, ms | exposed, ms | of "
      "TTFT | to run, ms | of TTFT | gap, ms |\n"
      "| --: | --- | --: | --: | --: | --: | --: | --: | --: | --: |\n",
      settings.requests, settings.prompt_tokens, settings.transport.c_str());
  for (const std::string& threads : settings.threads) {
    Measure(settings, threads);
  }
  return 0;
}

}  // namespace
}  // namespace baton::test

int main(int argc, char** argv) { return baton::test::Main(argc, argv); }
