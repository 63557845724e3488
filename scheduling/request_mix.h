// What requests are like lately: how long their prompts and answers are, what
// of the prompts has to be computed, what their streams may wait for a token.
//
// Means per request, and never tokens per second: what a cluster that is
// overloaded computes says what it can carry and not what is asked of it, while
// its requests are as long as ever.
//
// Prompts count when they are placed. Answers are known at their ends only, and
// long ones end late: to wait for them would be to know of another mix after
// half a minute. So what those that run have produced counts, too: of those
// that came so far, how many ended there (Kaplan and Meier, 1958); the mean is
// the area below the product of the rest. Where only ends are told, it is the
// mean of the answers.
//
// Each event counts exp(-age / time constant): forgotten by time, not by count,
// or a burst of one kind of requests would be the truth until there were as
// many others. Where requests are few, a longer time constant has to do.
// Seconds, on any clock that never goes back.
//
// Pure. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace baton::scheduling {

// A request when it is placed.
struct BegunRequest {
  // Of the prompt, tokens that no prefix cache has; and all of them.
  int32_t computed_tokens = 0;
  int32_t prompt_tokens = 0;
  // 0: none.
  double itl_target_seconds = 0;
};

// A request that ended well.
struct EndedRequest {
  int32_t computed_tokens = 0;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  double itl_target_seconds = 0;
  // Whether Began was told of it; and of its output, what Produced was.
  bool begun = false;
  int32_t told_tokens = 0;
};

// Means over requests, where nothing else is said. All 0 without any.
struct RequestMean {
  // How many ended within the longer memory, about; old ones count less.
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
  // Of the longer memory, and of the shorter one, which is taken when it knows
  // of kEnough requests that began, and requests have become others: their
  // prompts or answers differ by more than kAlike, which is no noise.
  static constexpr double kShortSeconds = 10;
  static constexpr double kLongSeconds = 60;
  static constexpr double kEnough = 50;
  static constexpr double kAlike = 0.15;

  // REQUIRES: 0 < short_seconds <= long_seconds.
  explicit RequestMix(double short_seconds = kShortSeconds,
                      double long_seconds = kLongSeconds);

  // A request was placed. REQUIRES: 0 <= computed_tokens <= prompt_tokens.
  void Began(double now, const BegunRequest& request);
  // The output of one that runs grew to `after` tokens; Produced told of
  // `before` so far. Once a second for each is enough. REQUIRES: 0 <= before <=
  // after.
  void Produced(double now, int32_t prompt_tokens, int32_t before,
                int32_t after);
  // REQUIRES: as Began; told_tokens <= output_tokens.
  void Ended(double now, const EndedRequest& request);

  RequestMean Mean(double now) const;

 private:
  // Output lengths: each bin is about a tenth longer than the one before, up to
  // some million tokens.
  static constexpr size_t kBins = 128;

  // Sums over events, each times its weight at `last`.
  struct Bin {
    double passed = 0;  // answers that got beyond it
    double ended = 0;   // in it
    double tokens = 0;  // of those, in it
  };
  struct Memory {
    double time_constant = 0;
    double last = 0;
    // Of prompts.
    double begun = 0;
    double computed = 0;
    double prompt = 0;
    double prompt_context = 0;
    double targets = 0;
    double target_weight = 0;
    // Of answers.
    double ended = 0;
    double produced = 0;        // tokens
    double stream_context = 0;  // of each of these
    double ended_tokens = 0;
    double final_context = 0;  // of each of these
    std::array<Bin, kBins> bins;

    void Forget(double now);
    void AddPrompt(const BegunRequest& request);
    void AddOutput(int32_t prompt_tokens, int32_t before, int32_t after);
    void AddEnd(const EndedRequest& request);
    double MeanOutput() const;
    double Keeps(double now) const;
    RequestMean Mean() const;  // without the weight
  };

  // The last bin that begins at `tokens` or before.
  static size_t BinOf(int32_t tokens);

  Memory short_;
  Memory long_;
};

}  // namespace baton::scheduling
