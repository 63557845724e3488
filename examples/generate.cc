// Streams the answer to a prompt, and says how many tokens it had:
//
//   baton-example-generate HOST:PORT PROMPT
//
// An API key is taken from BATON_API_KEY, as the `baton` command does it.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "client/client.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s HOST:PORT PROMPT\n", argv[0]);
    return 2;
  }
  baton::client::ClientOptions options;
  options.address = argv[1];
  if (const char* key = std::getenv("BATON_API_KEY")) options.api_key = key;
  const auto client = baton::client::Client::Connect(options);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }

  baton::v1::GenerateRequest request;
  request.set_text(argv[2]);
  request.set_max_tokens(64);
  request.mutable_sampling()->set_temperature(0);
  baton::client::GenerateOptions call;
  call.timeout = absl::Minutes(1);

  baton::v1::Usage usage;
  const absl::Status status = (*client)->Generate(
      request, call, [&](const baton::v1::GenerateResponse& response) {
        std::fputs(response.text().c_str(), stdout);
        std::fflush(stdout);
        if (response.has_usage()) usage = response.usage();
        return true;  // false would end the call
      });
  std::printf("\n");
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    if (const auto retry = baton::client::RetryAfter(status)) {
      std::fprintf(stderr, "come back in %s\n",
                   absl::FormatDuration(*retry).c_str());
    }
    return 1;
  }
  std::fprintf(stderr, "%u tokens after a prompt of %u\n",
               usage.output_tokens(), usage.prompt_tokens());
  return 0;
}
