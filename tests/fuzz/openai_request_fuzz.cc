// The JSON bodies of the HTTP APIs and the headers that go with them. The first
// byte says which.
#include <iterator>

#include "common/log.h"
#include "router/http/messages_request.h"
#include "router/http/openai_request.h"
#include "router/http/responses_request.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton::router::http {
namespace {

void CheckApi(const absl::StatusOr<ApiRequest>& api) {
  if (!api.ok()) {
    CHECK(!api.status().message().empty());
    return;
  }
  CHECK(!api->prompts.empty());
  CHECK_GE(api->n, 1);
  for (const v1::GenerateRequest& prompt : api->prompts) {
    CHECK(prompt.prompt_case() != v1::GenerateRequest::PROMPT_NOT_SET);
    // Only what protobuf can carry: gRPC refuses a string that is no UTF-8.
    std::string bytes;
    CHECK(prompt.SerializeToString(&bytes));
    CHECK(v1::GenerateRequest().ParseFromString(bytes));
  }
}

// "name: value" lines, then the body after an empty one.
void FuzzHeaders(fuzz::FuzzInput& input) {
  static constexpr const char* kNames[] = {"x-request-id", "x-baton-ttft-ms",
                                           "x-baton-itl-ms", "x-baton-class",
                                           "x-baton-priority"};
  Request request;
  while (!input.empty()) {
    const char* const name = kNames[input.Below(std::size(kNames))];
    request.headers.emplace_back(name, input.Take(input.Below(40)));
  }
  auto api = ParseCompletionRequest(R"({"model": "m", "prompt": "p"})");
  CHECK(api.ok()) << api.status();
  const absl::Status status = ApplyHeaders(request, &*api);
  if (status.ok()) {
    CheckApi(api);
  } else {
    CHECK(!status.message().empty());
  }
}

}  // namespace
}  // namespace baton::router::http

FUZZ_TARGET(openai_request)(const uint8_t* data, size_t size) {
  using baton::router::http::CheckApi;
  baton::fuzz::FuzzInput input(data, size);
  switch (input.Byte() % 5) {
    case 0:
      CheckApi(baton::router::http::ParseCompletionRequest(
          baton::fuzz::Exactly(input.Rest())));
      break;
    case 1: {
      const auto body = baton::fuzz::Exactly(input.Rest());
      CheckApi(baton::router::http::ParseChatRequest(body));
      CheckApi(baton::router::http::ParseResponsesRequest(body));
      CheckApi(baton::router::http::ParseMessagesRequest(body));
      break;
    }
    case 2: {
      const auto request = baton::router::http::ParseTokenizeRequest(
          baton::fuzz::Exactly(input.Rest()));
      if (!request.ok()) CHECK(!request.status().message().empty());
      break;
    }
    case 3: {
      const auto ids = baton::router::http::ParseDetokenizeRequest(
          baton::fuzz::Exactly(input.Rest()));
      if (!ids.ok()) CHECK(!ids.status().message().empty());
      break;
    }
    case 4:
      baton::router::http::FuzzHeaders(input);
      break;
  }
  return 0;
}
