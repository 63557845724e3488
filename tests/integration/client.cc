#include "tests/integration/client.h"

#include <chrono>

#include <grpcpp/grpcpp.h>

#include "common/rpc/grpc_setup.h"

namespace baton::test {

v1::GenerateRequest GreedyRequest(const std::vector<TokenId>& prompt,
                                  uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

Answer Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                absl::Duration timeout,
                const std::function<bool(const v1::GenerateResponse&, size_t)>&
                    on_response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(timeout));
  Answer answer;
  const auto reader = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (answer.finished()) ++answer.responses_after_last;
    answer.tokens.insert(answer.tokens.end(), response.token_ids().begin(),
                         response.token_ids().end());
    answer.text += response.text();
    for (const v1::TokenLogprobs& token : response.prompt_logprobs()) {
      auto& logprobs = answer.prompt_logprobs.emplace_back();
      logprobs.push_back({static_cast<TokenId>(token.chosen().id()),
                          token.chosen().logprob()});
      for (const v1::TokenLogprob& t : token.top()) {
        logprobs.push_back({static_cast<TokenId>(t.id()), t.logprob()});
      }
    }
    if (response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
      answer.last = response;
    }
    if (on_response != nullptr &&
        !on_response(response, answer.tokens.size())) {
      context.TryCancel();
    }
  }
  answer.status = rpc::FromGrpc(reader->Finish());
  return answer;
}

}  // namespace baton::test
