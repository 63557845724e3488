// The W3C header `traceparent` of a client.
#include "common/log.h"
#include "common/trace_context.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

FUZZ_TARGET(traceparent)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  const absl::string_view header = input.Rest();
  const auto parsed = baton::ParseTraceparent(header);
  uint64_t drawn = 1;
  const auto draw = [&drawn] { return ++drawn; };
  const auto started = baton::StartSpan(header, draw);
  CHECK(started.context.span != 0);
  if (!parsed.has_value()) {
    CHECK_EQ(started.parent, 0u);
    return 0;
  }
  CHECK_EQ(started.parent, parsed->span);
  CHECK_EQ(started.context.trace_high, parsed->trace_high);
  CHECK_EQ(started.context.trace_low, parsed->trace_low);
  // What we pass on means the same to the next one.
  const std::string written = baton::FormatTraceparent(*parsed);
  const auto again = baton::ParseTraceparent(written);
  CHECK(again.has_value() && *again == *parsed) << written;
  return 0;
}
