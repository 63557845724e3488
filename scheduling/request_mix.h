// What requests were like lately: how long their prompts and answers are, what
// of the prompts had to be computed, what their streams may wait for a token.
//
// Means per request of those that ended, and never tokens per second: what a
// cluster that is overloaded computes says what it can carry and not what is
// asked of it, while its requests are as long as ever.
//
// Each request counts exp(-age / time constant): forgotten by time, not by
// count, or a burst of one kind of requests would be the truth until there were
// as many others. Seconds, on any clock that never goes back.
//
// Pure. One thread.
#pragma once

#include <cstdint>

namespace baton::scheduling {

// A request that ended well.
struct EndedRequest {
  // Of the prompt, tokens that no prefix cache had; and all of them.
  int32_t computed_tokens = 0;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  // 0: none.
  double itl_target_seconds = 0;
};

// Means over requests, where nothing else is said. All 0 without any.
struct RequestMean {
  // How many requests it is the mean of; old ones count less.
  double weight = 0;
  double computed_tokens = 0;
  double prompt_tokens = 0;
  double output_tokens = 0;
  // Of output tokens: the positions that one reads in its step (the prompt and
  // half of the answer), and the tokens of its sequence at the end.
  double stream_context = 0;
  double final_context = 0;
  // Pairs of a prompt token that is computed and a position that it reads:
  // ContextTokens (step_cost.h) of the prompt.
  double prompt_context = 0;
  // Of requests with a target; 0: none has one.
  double itl_target_seconds = 0;
};

class RequestMix final {
 public:
  static constexpr double kTimeConstantSeconds = 30;

  // REQUIRES: time_constant_seconds > 0.
  explicit RequestMix(double time_constant_seconds = kTimeConstantSeconds);

  // REQUIRES: 0 <= computed_tokens <= prompt_tokens, output_tokens >= 0.
  void Ended(double now, const EndedRequest& request);

  RequestMean Mean(double now) const;

 private:
  // Sums over requests, each times its weight at last_.
  struct Sums {
    double weight = 0;
    double computed = 0;
    double prompt = 0;
    double output = 0;
    double prompt_context = 0;
    // Times output tokens.
    double stream_context = 0;
    double final_context = 0;
    // Of those with a target.
    double targets = 0;
    double target_weight = 0;
  };

  // What is left at `now` of a weight at last_.
  double Keeps(double now) const;

  const double time_constant_;
  double last_ = 0;  // when the sums were brought up to date
  Sums sums_;
};

}  // namespace baton::scheduling
