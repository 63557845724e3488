// Bytes of an HTTP client, in pieces as the network would make them: the
// requests that the server sees must not depend on the pieces, and nothing is
// held for ever.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "router/http/request_parser.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton::router::http {
namespace {

constexpr RequestParser::Limits kLimits = {/*header_bytes=*/256,
                                           /*body_bytes=*/512};

// What a connection saw: its requests, then why it ended, if it did.
std::string Describe(const Request& request) {
  std::string text =
      absl::StrCat(request.method, " ", request.path, "?", request.query, "\n");
  for (const auto& [name, value] : request.headers) {
    absl::StrAppend(&text, name, ": ", value, "\n");
  }
  return absl::StrCat(text, "[", request.body, "]\n");
}

void CheckRequest(const Request& request) {
  CHECK(!request.method.empty() && !request.path.empty());
  CHECK(request.path[0] == '/' || request.path == "*");
  CHECK(request.path.find('\0') == std::string::npos);
  CHECK_LE(request.body.size(), kLimits.body_bytes);
  size_t header_bytes = 0;
  for (const auto& [name, value] : request.headers) {
    CHECK(!name.empty());
    CHECK(name.find_first_of("\r\n: ABC") == std::string::npos) << name;
    CHECK(value.find_first_of("\r\n") == std::string::npos);
    header_bytes += name.size() + value.size();
  }
  CHECK_LE(header_bytes, kLimits.header_bytes);
}

// Reads requests until the bytes end, or one is refused. `sizes` are those of
// the pieces, used again and again.
std::string Serve(absl::string_view bytes, const std::vector<size_t>& sizes) {
  std::string seen;
  RequestParser parser(kLimits);
  auto* current = &parser;
  std::unique_ptr<RequestParser> next;
  size_t used = 0;
  size_t given = 0;
  for (size_t i = 0; given < bytes.size(); ++i) {
    given = std::min(bytes.size(), given + sizes[i % sizes.size()]);
    while (used < given) {
      const std::string piece = fuzz::Exactly(bytes.substr(used, given - used));
      const size_t eaten = current->Feed(piece);
      CHECK_LE(eaten, piece.size());
      used += eaten;
      if (current->state() == RequestParser::State::kFailed) {
        CHECK_GE(current->failure().status, 400);
        CHECK(!current->failure().message.empty());
        return absl::StrCat(seen, "refused");
      }
      if (current->state() != RequestParser::State::kComplete) break;
      absl::StrAppend(&seen, current->keep_alive(), current->http11(), " ");
      const Request request = current->TakeRequest();
      CheckRequest(request);
      absl::StrAppend(&seen, Describe(request));
      next = std::make_unique<RequestParser>(kLimits);
      current = next.get();
    }
  }
  return seen;
}

}  // namespace
}  // namespace baton::router::http

FUZZ_TARGET(http_request)(const uint8_t* data, size_t size) {
  using baton::router::http::Serve;
  baton::fuzz::FuzzInput input(data, size);
  std::vector<size_t> sizes;
  for (int i = 0; i < 4; ++i) sizes.push_back(1 + input.Byte());
  // More than any request may still want, so that each input ends in a refusal.
  const std::string bytes =
      absl::StrCat(input.Take(4096), "\r\n\r\n", std::string(1500, 'x'));
  const std::string in_pieces = Serve(bytes, sizes);
  CHECK(absl::EndsWith(in_pieces, "refused"));
  CHECK_EQ(in_pieces, Serve(bytes, {1}));
  return 0;
}
