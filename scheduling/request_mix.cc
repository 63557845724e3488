#include "scheduling/request_mix.h"

#include <algorithm>
#include <cmath>

#include "common/log.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling {
namespace {

constexpr double kBinGrowth = 1.1;

// Where bins begin, in output tokens, from 0 on.
template <size_t kBins>
constexpr std::array<int32_t, kBins> BinBegins() {
  std::array<int32_t, kBins> begins{};
  for (size_t i = 1; i < kBins; ++i) {
    begins[i] = std::max(begins[i - 1] + 1,
                         static_cast<int32_t>(kBinGrowth * begins[i - 1]));
  }
  return begins;
}

bool IsAlike(double a, double b) {
  return std::abs(a - b) <= RequestMix::kAlike * std::max(a, b);
}

}  // namespace

RequestMix::RequestMix(double short_seconds, double long_seconds) {
  CHECK_GT(short_seconds, 0);
  CHECK_LE(short_seconds, long_seconds);
  short_.time_constant = short_seconds;
  long_.time_constant = long_seconds;
}

size_t RequestMix::BinOf(int32_t tokens) {
  static constexpr auto kBegins = BinBegins<kBins>();
  return static_cast<size_t>(
             std::upper_bound(kBegins.begin(), kBegins.end(), tokens) -
             kBegins.begin()) -
         1;
}

void RequestMix::Began(double now, const BegunRequest& request) {
  CHECK_GE(request.computed_tokens, 0);
  CHECK_LE(request.computed_tokens, request.prompt_tokens);
  for (Memory* memory : {&short_, &long_}) {
    memory->Forget(now);
    memory->AddPrompt(request);
  }
}

void RequestMix::Produced(double now, int32_t prompt_tokens, int32_t before,
                          int32_t after) {
  CHECK_GE(before, 0);
  CHECK_LE(before, after);
  for (Memory* memory : {&short_, &long_}) {
    memory->Forget(now);
    memory->AddOutput(prompt_tokens, before, after);
  }
}

void RequestMix::Ended(double now, const EndedRequest& request) {
  if (!request.begun) {
    Began(now, {request.computed_tokens, request.prompt_tokens,
                request.itl_target_seconds});
  }
  Produced(now, request.prompt_tokens, request.told_tokens,
           request.output_tokens);
  short_.AddEnd(request);
  long_.AddEnd(request);
}

RequestMean RequestMix::Mean(double now) const {
  RequestMean mean = long_.Mean();
  if (short_.ended > 0 && short_.begun * short_.Keeps(now) >= kEnough) {
    const RequestMean of_late = short_.Mean();
    if (!IsAlike(of_late.computed_tokens, mean.computed_tokens) ||
        !IsAlike(of_late.output_tokens, mean.output_tokens)) {
      mean = of_late;
    }
  }
  mean.weight = long_.ended * long_.Keeps(now);
  return mean;
}

double RequestMix::Memory::Keeps(double now) const {
  return now <= last ? 1 : std::exp((last - now) / time_constant);
}

void RequestMix::Memory::Forget(double now) {
  if (now <= last) return;
  const double keep = Keeps(now);
  last = now;
  for (double* sum :
       {&begun, &computed, &prompt, &prompt_context, &targets, &target_weight,
        &ended, &produced, &stream_context, &ended_tokens, &final_context}) {
    *sum *= keep;
  }
  for (Bin& bin : bins) {
    bin.passed *= keep;
    bin.ended *= keep;
    bin.tokens *= keep;
  }
}

void RequestMix::Memory::AddPrompt(const BegunRequest& request) {
  begun += 1;
  computed += request.computed_tokens;
  prompt += request.prompt_tokens;
  prompt_context += static_cast<double>(
      ContextTokens(request.prompt_tokens - request.computed_tokens,
                    request.computed_tokens));
  if (request.itl_target_seconds > 0) {
    targets += request.itl_target_seconds;
    target_weight += 1;
  }
}

void RequestMix::Memory::AddOutput(int32_t prompt_tokens, int32_t before,
                                   int32_t after) {
  const double tokens = after - before;
  produced += tokens;
  stream_context += tokens * (prompt_tokens + (before + after) / 2.0);
  for (size_t i = BinOf(before); i < BinOf(after); ++i) bins[i].passed += 1;
}

void RequestMix::Memory::AddEnd(const EndedRequest& request) {
  static constexpr auto kBegins = BinBegins<kBins>();
  const double tokens = request.output_tokens;
  ended += 1;
  ended_tokens += tokens;
  final_context += tokens * (request.prompt_tokens + tokens);
  const size_t last_bin = BinOf(request.output_tokens);
  bins[last_bin].ended += 1;
  bins[last_bin].tokens += tokens - kBegins[last_bin];
}

double RequestMix::Memory::MeanOutput() const {
  static constexpr auto kBegins = BinBegins<kBins>();
  double left = 1;  // of all answers, those that get to this bin
  double mean = 0;
  for (size_t i = 0; i + 1 < kBins && left > 0; ++i) {
    const Bin& bin = bins[i];
    const double all = bin.passed + bin.ended;
    // Nobody has come so far.
    if (!(all > 0)) break;
    const double width = kBegins[i + 1] - kBegins[i];
    mean += left * (bin.passed * width + bin.tokens) / all;
    left *= bin.passed / all;
  }
  return mean;
}

RequestMean RequestMix::Memory::Mean() const {
  RequestMean mean;
  // After very long, all of it may have become 0.
  if (!(ended > 0 && begun > 0)) return mean;
  mean.computed_tokens = computed / begun;
  mean.prompt_tokens = prompt / begun;
  mean.prompt_context = prompt_context / begun;
  mean.output_tokens = MeanOutput();
  if (produced > 0) mean.stream_context = stream_context / produced;
  if (ended_tokens > 0) mean.final_context = final_context / ended_tokens;
  if (target_weight > 0) mean.itl_target_seconds = targets / target_weight;
  return mean;
}

}  // namespace baton::scheduling
