// Calls Generate as a test wants it: a request from token ids, and everything
// that came back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/ids.h"
#include "scheduling/request.h"

namespace baton::test {

struct Answer {
  absl::Status status;
  std::vector<TokenId> tokens;
  std::string text;
  // Of each token of the prompt but the first, and behind it of the likeliest.
  std::vector<std::vector<scheduling::TokenLogprob>> prompt_logprobs;
  // The response with the finish reason.
  v1::GenerateResponse last;
  // Responses after `last`, or tokens and text in none: what must not be.
  int responses_after_last = 0;

  bool finished() const {
    return last.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  }
};

// Greedy, max_tokens as given, past end-of-text tokens.
v1::GenerateRequest GreedyRequest(const std::vector<TokenId>& prompt,
                                  uint32_t max_tokens);

// Runs the whole call on the calling thread. `on_response` sees each response
// with the number of tokens so far, and cancels the call by returning false.
Answer Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                absl::Duration timeout,
                const std::function<bool(const v1::GenerateResponse&, size_t)>&
                    on_response = nullptr);

}  // namespace baton::test
