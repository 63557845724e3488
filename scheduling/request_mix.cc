#include "scheduling/request_mix.h"

#include <cmath>

#include "common/log.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling {

RequestMix::RequestMix(double time_constant_seconds)
    : time_constant_(time_constant_seconds) {
  CHECK_GT(time_constant_seconds, 0);
}

void RequestMix::Ended(double now, const EndedRequest& request) {
  CHECK_GE(request.computed_tokens, 0);
  CHECK_LE(request.computed_tokens, request.prompt_tokens);
  CHECK_GE(request.output_tokens, 0);
  const double keep = Keeps(now);
  for (double* sum :
       {&sums_.weight, &sums_.computed, &sums_.prompt, &sums_.output,
        &sums_.prompt_context, &sums_.stream_context, &sums_.final_context,
        &sums_.targets, &sums_.target_weight}) {
    *sum *= keep;
  }
  last_ = now;
  const double prompt = request.prompt_tokens;
  const double output = request.output_tokens;
  sums_.weight += 1;
  sums_.computed += request.computed_tokens;
  sums_.prompt += prompt;
  sums_.output += output;
  sums_.prompt_context += static_cast<double>(
      ContextTokens(request.prompt_tokens - request.computed_tokens,
                    request.computed_tokens));
  sums_.stream_context += output * (prompt + output / 2);
  sums_.final_context += output * (prompt + output);
  if (request.itl_target_seconds > 0) {
    sums_.targets += request.itl_target_seconds;
    sums_.target_weight += 1;
  }
}

double RequestMix::Keeps(double now) const {
  return now <= last_ ? 1 : std::exp((last_ - now) / time_constant_);
}

RequestMean RequestMix::Mean(double now) const {
  RequestMean mean;
  // After very long, all of it may have become 0.
  if (!(sums_.weight > 0)) return mean;
  mean.weight = sums_.weight * Keeps(now);
  mean.computed_tokens = sums_.computed / sums_.weight;
  mean.prompt_tokens = sums_.prompt / sums_.weight;
  mean.output_tokens = sums_.output / sums_.weight;
  mean.prompt_context = sums_.prompt_context / sums_.weight;
  if (sums_.output > 0) {
    mean.stream_context = sums_.stream_context / sums_.output;
    mean.final_context = sums_.final_context / sums_.output;
  }
  if (sums_.target_weight > 0) {
    mean.itl_target_seconds = sums_.targets / sums_.target_weight;
  }
  return mean;
}

}  // namespace baton::scheduling
